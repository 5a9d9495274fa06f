package profiles

import (
	"math/rand"
	"slices"
	"strings"
	"testing"
	"testing/quick"
	"time"
)

func request(key, value string) Request {
	return Request{Key: key, Value: value, Source: "annotation " + AnnotationPrefix + key}
}

func TestTighten(t *testing.T) {
	for _, c := range []struct {
		key, value string
		check      func(p *Profile) bool
	}{
		{"network", "none", func(p *Profile) bool { return p.Network.Mode == NetworkNone }},
		{"connect-ports", "443, 8000-8100", func(p *Profile) bool {
			return slices.Equal(p.Network.ConnectPorts, []PortRange{{443, 443}, {8000, 8100}}) && p.Network.ListenPorts == nil
		}},
		{"listen-ports", "none", func(p *Profile) bool { return p.Network.ListenPorts != nil && len(p.Network.ListenPorts) == 0 }},
		{"memory", "1GiB", func(p *Profile) bool { return p.Limits.MemoryBytes == 1<<30 }},
		{"pids", "10", func(p *Profile) bool { return p.Limits.PIDs == 10 }},
		{"cpus", "0.5", func(p *Profile) bool { return p.Limits.CPUs == 0.5 }},
		{"drop-capabilities", "all", func(p *Profile) bool { return len(p.Capabilities) == 0 }},
		{"drop-capabilities", "kill, CAP_CHOWN", func(p *Profile) bool {
			return !slices.Contains(p.Capabilities, "CAP_KILL") && !slices.Contains(p.Capabilities, "CAP_CHOWN") && len(p.Capabilities) == len(agent().Capabilities)-2
		}},
		{"deny-syscalls", "ptrace,chroot", func(p *Profile) bool { return slices.Equal(p.Syscalls.Deny, []string{"chroot", "ptrace"}) }},
	} {
		t.Run(c.key+" "+c.value, func(t *testing.T) {
			before := agent()
			got, notes, err := Tighten(before, []Request{request(c.key, c.value)})
			if err != nil {
				t.Fatal(err)
			}
			if !c.check(got) || got.Name != "agent" || len(notes) != 1 || !notes[0].Routine {
				t.Errorf("%+v, %v", got, notes)
			}
			if !equal(before, agent()) {
				t.Error("the input changed")
			}
		})
	}
}

func TestTighten_Refused(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"netwrok", "none", "annotation agentsafe.dev/netwrok: not a key"}, //nolint:misspell // a typing error, which is the test
		{"network", "off", `annotation agentsafe.dev/network: network: "off" is not one of`},
		{"connect-ports", "", `annotation agentsafe.dev/connect-ports: "" is no list`},
		{"listen-ports", "http", `annotation agentsafe.dev/listen-ports: "http" is neither`},
		{"memory", "1GB", `annotation agentsafe.dev/memory: "1GB" is not a size`},
		{"pids", "-1", `annotation agentsafe.dev/pids: "-1" is not`},
		{"cpus", "nan", `annotation agentsafe.dev/cpus: "nan" is not`},
		{"drop-capabilities", "everything", `annotation agentsafe.dev/drop-capabilities: "CAP_EVERYTHING" is not`},
		{"deny-syscalls", "../x", `annotation agentsafe.dev/deny-syscalls: syscalls: "../x"`},
	} {
		if got, _, err := Tighten(agent(), []Request{request(c.key, c.value)}); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s=%s: %v, %v", c.key, c.value, got, err)
		}
	}
	if _, _, err := Tighten(builtin(t, NameNone), []Request{request("network", "none")}); err == nil {
		t.Error("none has no rules, and a request must not be lost")
	}
}

// What asks for more gets a note, and nothing else.
func TestTighten_Looser(t *testing.T) {
	p := agent()
	p.Limits.MemoryBytes = 1 << 20
	got, notes, err := Tighten(p, []Request{request("network", "host"), request("memory", "1GiB")})
	if err != nil || got != p || len(notes) != 2 || notes[0].Routine || notes[1].Routine {
		t.Errorf("%+v, %v, %v", got, notes, err)
	}
	if !strings.Contains(notes[0].Text, "network.mode") || !strings.Contains(notes[1].Text, "limits.memory") {
		t.Error(notes)
	}
}

// For all profiles and requests: the result grants no more than the profile.
func TestTighten_OnlyTightens(t *testing.T) {
	values := []string{"none", "443,80-90", "engine", "host", "gateway", "1GiB", "5", "0.5", "1m", "all", "ptrace", "/a", "*_TOKEN", "auto", "on", "overlay", "readonly", "direct", ""}
	law := func(p *Profile, seed int64) bool {
		r := rand.New(rand.NewSource(seed))
		var ask []Request
		for range r.Intn(4) {
			ask = append(ask, request(one(r, RequestKeys()...), one(r, values...)))
		}
		got, _, err := Tighten(p, ask)
		return err != nil || LessOrEqual(got, p)
	}
	if err := quick.Check(law, &quick.Config{MaxCount: 1000}); err != nil {
		t.Error(err)
	}
}

func TestParseDuration(t *testing.T) {
	if d, err := ParseDuration("1h30m"); err != nil || d != 90*time.Minute {
		t.Error(d, err)
	}
	for _, bad := range []string{"", "5", "-1m", "0s", "1d", "1e9h"} {
		if d, err := ParseDuration(bad); err == nil {
			t.Errorf("%q: %v", bad, d)
		}
	}
}
