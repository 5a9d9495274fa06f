package network

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

const image = "busybox:test"

// administer makes the profile in file the default of this host, as its administrator would.
func administer(t *testing.T, file string, more ...string) {
	t.Helper()
	box.MustRun(t, ctl(t), "profile", "install", file)
	configure(t, append([]string{`default = "net"`}, more...)...)
}

// configure writes the host's configuration and applies it.
func configure(t *testing.T, lines ...string) {
	t.Helper()
	if err := os.MkdirAll("/etc/agentsafe", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/agentsafe/config.toml", []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, ctl(t), "config", "apply")
	t.Cleanup(func() {
		if err := os.RemoveAll("/etc/agentsafe"); err != nil {
			t.Error(err)
		}
	})
}

// startDocker starts an engine whose runtime is the one under test.
func startDocker(t *testing.T) *harness.Docker {
	t.Helper()
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	e, err := box.StartDocker()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := e.Import(busybox.Tar, image); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestDocker(t *testing.T) {
	administer(t, profileFile(t, rules("http://example.com", "http://private.test", "http://six.test", "http://dual.test")))
	e := startDocker(t)
	network := box.ID()
	e.Must(t, "network", "create", "--subnet", "172.30.9.0/24", network)
	t.Cleanup(func() { e.Must(t, "network", "rm", network) })
	peer := e.Up(t, harness.Peer{Name: "runc"}, "--network", network, "--network-alias", "peer", "--ip", "172.30.9.77", image, "probe", "serve", ":80", "peer")
	_ = peer
	for _, where := range []string{"bridge", network, "none"} {
		t.Run(strings.Replace(where, network, "user-defined", 1), func(t *testing.T) {
			name := e.Up(t, harness.Peer{Name: "agentsafe"}, "--network", where, image, "sleep", "1000")
			for _, tc := range []struct{ name, script, want string }{
				{"allowed", "wget -qO- http://example.com/x", "^world: example.com /x\n$"},
				{"dual stack", "wget -qO- http://dual.test/x", "^world: dual.test /x\n$"},
				{"not allowed", "wget -qO- http://other.test/ 2>&1", "bad address"},
				{"by address", "wget -qO- http://" + public4 + "/ 2>&1", "403"},
				{"metadata", "wget -qO- http://169.254.169.254/ 2>&1", "403"},
				{"private", "wget -qO- http://10.9.9.9/ 2>&1", "403"},
				{"private by name", "wget -qO- http://private.test/ 2>&1", "bad address"},
				{"the host", "wget -qO- http://172.30.0.1/ 2>&1", "403"},
				{"a peer by name", "wget -qO- http://peer/ 2>&1", "bad address"},
				{"a peer by address", "wget -qO- http://172.30.9.77/ 2>&1", "403"},
				{"UDP", "echo | nc -u -w 2 " + public4 + " 443 2>&1; echo $?", "(?i)not permitted|refused|[^0]\n$"},
				{"own loopback", "(httpd -p 127.0.0.1:8000 -h /etc; sleep 0.2; wget -qO- http://127.0.0.1:8000/passwd)", "root:"},
				{"what was refused", "wget -qO- http://gateway.agentsafe.internal/", `"code":"no-rule"`},
			} {
				r := e.Do(t, "exec", name, "sh", "-c", tc.script)
				if !regexp.MustCompile(tc.want).MatchString(r.Stdout) {
					t.Errorf("%s: want %s\n%v", tc.name, tc.want, r)
				}
			}
		})
	}
	t.Run("published port", func(t *testing.T) {
		e.Up(t, harness.Peer{Name: "agentsafe"}, "-p", "18099:80", image, "probe", "serve", ":80", "served")
		r := box.Run(t, harness.Cmd{Args: []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do curl -sS http://127.0.0.1:18099/ && exit; sleep 0.3; done"}})
		if r.Stdout != "served\n" {
			t.Errorf("%v", r)
		}
	})
	// The gateway goes out through the container's own network, so what cuts that off cuts the gateway off.
	t.Run("internal", func(t *testing.T) {
		internal := box.ID()
		e.Must(t, "network", "create", "--internal", "--subnet", "172.30.10.0/24", internal)
		t.Cleanup(func() { e.Must(t, "network", "rm", internal) })
		name := e.Up(t, harness.Peer{Name: "agentsafe"}, "--network", internal, image, "sleep", "1000")
		if r := e.Do(t, "exec", name, "timeout", "20", "wget", "-qO-", "http://example.com/x"); r.Exit == 0 {
			t.Errorf("an internal network leads outside:\n%v", r)
		}
	})
}

// A profile that does not let the gateway use the host's network does not start without one.
func TestAttack_HostNetworkWithoutLeave(t *testing.T) {
	r := box.Run(t, harness.Cmd{Args: []string{
		ctl(t), "run", "--profile", profileFile(t, "  mode: gateway\n  dialFrom: container\n  allow: [example.com]\n"), "--workspace", box.TempDir(t), "--", "true",
	}})
	if r.Exit == 0 || !strings.Contains(r.Stderr, "network: {dialFrom: host}` in the profile in place of container") {
		t.Errorf("%v", r)
	}
}

// The log has a line for each decision, with what an auditor needs.
func TestLog(t *testing.T) {
	administer(t, profileFile(t, rules("http://example.com")))
	_, peer := harness.Peers(t)
	d := box.Bare(t, peer)
	b := d.Create(t, harness.Sh("wget -qO- http://example.com/x; wget -qO- http://other.test/; wget -qO- http://169.254.169.254/; sleep 100"))
	d.Must(t, "start", b.ID)
	path := filepath.Join(d.Root, b.ID, "network.jsonl")
	var text []byte
	for range 100 {
		text, _ = os.ReadFile(path)
		if strings.Contains(string(text), `"address":"169.254.169.254"`) {
			break
		}
		box.MustRun(t, "sleep", "0.1")
	}
	for _, want := range []string{
		`"container":"` + b.ID + `","event":"start"`,
		`"event":"dns","decision":"allow","name":"example.com","rule":"http://example.com"`,
		`"event":"request","decision":"allow","name":"example.com",.*"port":80,"protocol":"http","rule":"http://example.com"`,
		`"event":"dns","decision":"refuse","name":"other.test","code":"no-rule"`,
		`"event":"connect","decision":"refuse","address":"169.254.169.254","port":80,"protocol":"http","code":"no-name"`,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("no line %s in\n%s", want, text)
		}
	}
}
