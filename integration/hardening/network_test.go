package hardening

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// serveAt gives the box an address and a server there, for as long as the test lasts.
func serveAt(t *testing.T, address, port, word string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.AddrDel(lo, addr); err != nil {
			t.Error(err)
		}
	})
	at := net.JoinHostPort(addr.IP.String(), port)
	server := box.Start(t, harness.Cmd{Args: []string{probe(), "serve", at, word}, Timeout: 10 * time.Minute})
	t.Cleanup(func() { server.Stop(t) })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the fake service at %s: %v", at, err)
		}
	}
}

func TestAddresses(t *testing.T) {
	serveAt(t, "169.254.169.254/32", "80", "credentials")
	serveAt(t, "100.100.100.200/32", "80", "credentials")
	serveAt(t, "10.77.0.1/32", "8080", "intranet")
	serveAt(t, "192.168.77.1/32", "8080", "intranet")
	serveAt(t, "93.184.215.14/32", "80", "public")
	runc, agentsafe := harness.Peers(t)
	containers := map[string]string{}
	for _, p := range []harness.Peer{runc, agentsafe} {
		containers[p.Name] = engine.Up(t, p, image, "sleep", "1000")
	}
	for _, tc := range []struct {
		name, url, word string
		reachable       bool // under agentsafe; under runc all are
	}{
		{"metadata", "http://169.254.169.254", "credentials", false},
		{"metadata of another cloud", "http://100.100.100.200", "credentials", false},
		{"private", "http://10.77.0.1:8080", "intranet", false},
		{"private too", "http://192.168.77.1:8080", "intranet", false},
		{"the host by the gateway's address", "http://172.30.0.1:8080", "intranet", false},
		{"public", "http://93.184.215.14", "public", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if strings.Contains(tc.name, "gateway") {
				server := box.Start(t, harness.Cmd{Args: []string{probe(), "serve", "172.30.0.1:8080", tc.word}})
				t.Cleanup(func() { server.Stop(t) })
				time.Sleep(200 * time.Millisecond) // the peer below would fail if this were too short
			}
			for _, p := range []harness.Peer{runc, agentsafe} {
				want := tc.reachable || p.Name == "runc"
				for way, r := range map[string]harness.Result{
					"exec":          engine.Do(t, "exec", containers[p.Name], "probe", "get", tc.url),
					"first process": engine.Do(t, "run", "--rm", "--runtime", p.Name, image, "probe", "get", tc.url),
				} {
					got := r.Exit == 0 && strings.Contains(r.Stdout, tc.word)
					if got != want {
						t.Errorf("%s, %s: reached %v, want %v\n%v", p.Name, way, got, want, r)
					}
					if !want && strings.Contains(r.Stdout, "timeout") {
						t.Errorf("%s, %s: times out; a refusal should be quick\n%v", p.Name, way, r)
					}
				}
			}
		})
	}
}

// TestMetadataAtOnce tries before anything else can have run: the policy is there before the first instruction.
func TestMetadataAtOnce(t *testing.T) {
	serveAt(t, "169.254.169.254/32", "80", "credentials")
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		for range 5 {
			r := engine.Do(t, "run", "--rm", "--runtime", p.Name, image, "probe", "get", "http://169.254.169.254")
			if reached := r.Exit == 0; reached != (p.Name == "runc") {
				t.Errorf("reached %v\n%v", reached, r)
			}
		}
		return harness.Result{}
	})
}
