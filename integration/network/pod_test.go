package network

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// share makes a container join the network namespace of a process.
func share(pid int, profile string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		for i := range s.Linux.Namespaces {
			if n := &s.Linux.Namespaces[i]; n.Type == specs.NetworkNamespace {
				n.Path = "/proc/" + strconv.Itoa(pid) + "/ns/net"
			}
		}
		if profile != "" {
			s.Annotations = map[string]string{"agentsafe.dev/profile": profile}
		}
		s.Process.Args = []string{"sleep", "1000"}
	}
}

// install adds a profile that an annotation can name.
func install(t *testing.T, name, network string) {
	t.Helper()
	path := filepath.Join(box.TempDir(t), "p.yaml")
	text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: " + name + "}\nextends: agent\nnetwork:\n" + network
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, ctl(t), "profile", "install", path)
}

// TestSharedNetwork: containers that share a network have one gateway, which allows what all of them may. It outlives the
// container that it was started for.
func TestSharedNetwork(t *testing.T) {
	administer(t, profileFile(t, rules("http://example.com", "http://www.example.com", "tcp://git.test:5432")))
	install(t, "tight", rules("http://example.com"))
	_, peer := harness.Peers(t)
	d := box.Bare(t, peer)
	get := func(b harness.Bundle, name string) bool {
		return d.Do(t, "exec", b.ID, "timeout", "10", "wget", "-qO-", "http://"+name+"/").Exit == 0
	}
	first := d.Up(t, nil)
	if !get(first, "example.com") || !get(first, "www.example.com") {
		t.Fatal("the profile does not hold")
	}
	d.Do(t, "exec", first.ID, "sh", "-c", "(sleep 60 | nc git.test 5432 >/tmp/kept) & sleep 0.5")
	pid := d.State(t, first.ID).Pid
	second := d.Up(t, share(pid, "tight"))
	for _, b := range []harness.Bundle{first, second} {
		if !get(b, "example.com") || get(b, "www.example.com") {
			t.Errorf("container %s: the policy is not that of both", b.ID)
		}
	}
	// Either name leads to the one gateway; what the second one may not reach was cut off.
	show := box.MustRun(t, ctl(t), "--root", d.Root, "network", "show", second.ID)
	if !strings.Contains(show, second.ID) || regexp.MustCompile(`git.test +5432 +tcp`).MatchString(show) {
		t.Errorf("show:\n%s", show)
	}
	if n := gateways(t, first.ID) + gateways(t, second.ID); n != 1 {
		t.Errorf("%d gateways", n)
	}
	// A container without a gateway's policy of its own gets no more than the others.
	open := *d
	open.Global = []string{"--profile", "agent"}
	third := open.Up(t, share(pid, ""))
	if !get(third, "example.com") || get(third, "www.example.com") || get(third, public4) {
		t.Error("the policy of another mode opens the network")
	}
	d.Must(t, "delete", "--force", third.ID)
	d.Must(t, "delete", "--force", second.ID)
	if !get(first, "example.com") || !get(first, "www.example.com") {
		t.Error("a container that was deleted still narrows the others")
	}
	second = d.Up(t, share(pid, "tight"))
	d.Must(t, "delete", "--force", first.ID)
	for deadline := time.Now().Add(30 * time.Second); !get(second, "example.com"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the network ended with the first container")
		}
	}
	if get(second, "www.example.com") || get(second, public4) {
		t.Error("the new gateway has another policy")
	}
	again := d.Up(t, share(d.State(t, second.ID).Pid, "tight"))
	if !get(again, "example.com") || gateways(t, again.ID) != 0 {
		t.Error("a further container does not join the new gateway")
	}
}

// gateways counts the egress processes of a container.
func gateways(t *testing.T, id string) int {
	t.Helper()
	out := box.MustRun(t, "sh", "-c", `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' <$p/cmdline 2>/dev/null)" in "agentsafe-gateway `+id+` ") echo x;; esac; done; true`)
	return strings.Count(out, "x")
}

// TestAttack_NetworkConnectedLater: a network that the engine connects to a running container opens nothing.
func TestAttack_NetworkConnectedLater(t *testing.T) {
	administer(t, profileFile(t, rules("http://example.com", "http://private.test")))
	e := startDocker(t)
	name := e.Up(t, harness.Peer{Name: "agentsafe"}, image, "sleep", "1000")
	later := box.ID()
	e.Must(t, "network", "create", "--subnet", "172.30.11.0/24", later)
	t.Cleanup(func() { e.Must(t, "network", "rm", later) })
	e.Up(t, harness.Peer{Name: "runc"}, "--network", later, "--ip", "172.30.11.77", image, "probe", "serve", ":80", "peer")
	e.Must(t, "network", "connect", "--ip", "172.30.11.5", later, name)
	for script, want := range map[string]string{
		"wget -qO- http://example.com/x":             "^world: example.com /x\n$",
		"wget -qO- http://172.30.11.77/ 2>&1":        "403",
		"wget -qO- http://172.30.11.1/ 2>&1":         "403",
		"wget -qO- http://169.254.169.254/ 2>&1":     "403",
		"wget -qO- http://private.test/ 2>&1":        "bad address",
		"echo | nc -u -w 2 172.30.11.77 80; echo $?": "[^0]\n$",
	} {
		if r := e.Do(t, "exec", name, "timeout", "20", "sh", "-c", script); !regexp.MustCompile(want).MatchString(r.Stdout) {
			t.Errorf("%s: want %s\n%v", script, want, r)
		}
	}
	e.Must(t, "network", "disconnect", later, name)
}

// TestNetworkChanges: connections that the gateway keeps for the next request are none any more once the network that they
// went out by is gone, or another one has become the way out.
func TestNetworkChanges(t *testing.T) {
	administer(t, profileFile(t, rules("http://example.com", "tcp://git.test:5432")))
	e := startDocker(t)
	name := e.Up(t, harness.Peer{Name: "agentsafe"}, image, "sleep", "1000")
	get := func(when string) {
		t.Helper()
		for range 3 {
			r := e.Do(t, "exec", name, "timeout", "60", "wget", "-qO-", "http://example.com/x")
			if r.Stdout != "world: example.com /x\n" {
				t.Errorf("%s: %v", when, r)
			}
		}
	}
	// The engine takes the way out by the names of its networks: this one comes before that of its own.
	later := "aa" + box.ID()
	e.Must(t, "network", "create", later)
	t.Cleanup(func() { e.Must(t, "network", "rm", later) })
	e.Must(t, "network", "connect", later, name)
	get("connected")
	e.Must(t, "exec", "-d", name, "sh", "-c", "mkfifo /tmp/f; nc git.test 5432 <>/tmp/f >/tmp/open; echo ended >/tmp/ended")
	until := "until [ -s %s ]; do sleep 0.1; done; cat %[1]s"
	e.Must(t, "exec", name, "timeout", "60", "sh", "-c", fmt.Sprintf(until, "/tmp/open"))
	e.Must(t, "network", "disconnect", later, name)
	// A relayed connection is reset: nothing would ever be answered.
	e.Must(t, "exec", name, "timeout", "60", "sh", "-c", fmt.Sprintf(until, "/tmp/ended"))
	get("disconnected")
	e.Must(t, "network", "disconnect", "bridge", name)
	e.Must(t, "network", "connect", "bridge", name)
	get("connected again")
}

// The host's network is refused: no rule could hold a task there.
func TestAttack_HostNetwork(t *testing.T) {
	administer(t, profileFile(t, rules("http://example.com")))
	_, peer := harness.Peers(t)
	d := box.Bare(t, peer)
	r := d.RunSpec(t, func(s *specs.Spec) {
		for i := range s.Linux.Namespaces {
			if n := &s.Linux.Namespaces[i]; n.Type == specs.NetworkNamespace {
				// The runtime's own; the first thread of this process may have been left in another one (within).
				n.Path = "/proc/self/ns/net"
			}
		}
		s.Process.Args = []string{"true"}
	})
	if r.Exit == 0 || !strings.Contains(r.Stderr, "linux.namespaces network: the host's") {
		t.Errorf("the host's network: %v", r)
	}
}
