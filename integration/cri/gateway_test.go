package cri

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

const (
	gatewayHandler = "agentsafe-net"
	outsideServer  = "93.184.216.34"
	outsideDNS     = "9.9.9.9"
)

// startOutside makes a network outside of the pods': name servers, and a web server that says which name it was asked by.
func startOutside(t *testing.T) {
	t.Helper()
	box.MustRun(t, "sh", "-ec", `
ip netns add outside
ip link add up0 type veth peer name w0 netns outside
ip addr add 203.0.113.1/30 dev up0
ip link set up0 up
ip -n outside addr add 203.0.113.2/30 dev w0
ip -n outside link set w0 up
ip -n outside link set lo up
for a in `+outsideServer+` `+outsideDNS+` 10.9.9.9; do ip -n outside addr add $a dev lo; done
ip -n outside route add default via 203.0.113.1
ip route add default via 203.0.113.2
sysctl -q -w net.ipv4.ip_forward=1`)
	ns, err := os.Open("/run/netns/outside")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var packets net.PacketConn
	var web net.Listener
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread stays there, and ends with its goroutine
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			packets, err = net.ListenPacket("udp", ":53")
		}
		if err == nil {
			web, err = net.Listen("tcp", ":80")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	go dns.ActivateAndServe(nil, packets, dns.HandlerFunc(answerOutside))                                            //nolint:errcheck // ends with its socket
	go http.Serve(web, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprintln(rw, r.Host) })) //nolint:errcheck,gosec // likewise
	t.Cleanup(func() {
		err := errors.Join(packets.Close(), web.Close())
		box.MustRun(t, "sh", "-ec", "ip link del up0; ip netns del outside; rmdir /run/netns 2>/dev/null || true")
		if uerr := unix.Unmount("/run/netns", unix.MNT_DETACH); uerr != nil && !errors.Is(uerr, unix.EINVAL) && !errors.Is(uerr, unix.ENOENT) {
			err = errors.Join(err, uerr)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// answerOutside knows all names: private.test is one of the private network.
func answerOutside(rw dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	if name := q.Question[0].Name; q.Question[0].Qtype == dns.TypeA {
		a := outsideServer
		if name == "private.test." {
			a = "10.9.9.9"
		}
		if rr, err := dns.NewRR(name + " 30 IN A " + a); err == nil {
			m.Answer = append(m.Answer, rr)
		}
	}
	rw.WriteMsg(m) //nolint:errcheck // a test's client
}

// installProfile adds a profile of the mode gateway.
func installProfile(t *testing.T, name, allow string) {
	t.Helper()
	path := filepath.Join(box.TempDir(t), "p.yaml")
	text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: " + name + "}\nextends: agent\nnetwork: {mode: gateway, allow: [" + allow + "]}\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, filepath.Join(filepath.Dir(shimPath()), "agentsafectl"), "profile", "install", path)
	t.Cleanup(func() {
		if err := os.RemoveAll("/etc/agentsafe/profiles"); err != nil {
			t.Error(err)
		}
	})
}

// TestGateway: the containers of a pod have one gateway, which allows what all of them may, on the network that CNI made.
func TestGateway(t *testing.T) {
	startOutside(t)
	installProfile(t, "net", `"http://example.com", "http://www.example.com", "http://private.test"`)
	installProfile(t, "tight", `"http://example.com"`)
	p := runPod(t, gatewayHandler, object{"dns_config": object{"servers": []string{outsideDNS}}})
	first := p.run(t, imageBusybox, nil, "sleep", "1000")
	get := func(id, url string) harness.Result {
		return engine.do(t, "exec", "--sync", id, "timeout", "20", "wget", "-qO-", url)
	}
	wants := func(when, id string, wide bool) {
		t.Helper()
		for url, allowed := range map[string]bool{
			"http://example.com/": true, "http://www.example.com/": wide, "http://other.test/": false, "http://private.test/": false,
			"http://" + outsideServer + "/": false, "http://169.254.169.254/": false, "http://10.9.9.9/": false, "http://10.88.0.1/": false,
		} {
			r := get(id, url)
			if got := r.Exit == 0 && strings.TrimSpace(r.Stdout) == strings.Trim(url[len("http:"):], "/"); got != allowed {
				t.Errorf("%s: %s: want %v\n%v", when, url, allowed, r)
			}
		}
	}
	wants("alone", first, true)
	second := p.run(t, imageBusybox, object{"annotations": object{"agentsafe.dev/profile": "tight"}}, "sleep", "1000")
	wants("beside a narrower one", first, false)
	wants("the narrower one", second, false)
	if n := box.MustRun(t, "sh", "-c", `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' <$p/cmdline 2>/dev/null)" in "agentsafe-gateway "*) echo x;; esac; done`); strings.Count(n, "x") != 1 {
		t.Errorf("gateways: %q", n)
	}
	engine.must(t, "rm", "--force", second)
	wants("after the narrower one", first, true)
}
