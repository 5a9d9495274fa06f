package profiles

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func ports(t *testing.T, texts ...string) []PortRange {
	t.Helper()
	out := []PortRange{}
	for _, s := range texts {
		r, err := ParsePorts(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestParsePorts(t *testing.T) {
	for text, want := range map[string]PortRange{"0": {0, 0}, "443": {443, 443}, "8000-8100": {8000, 8100}, "7-7": {7, 7}, "0-65535": {0, 65535}} {
		if got, err := ParsePorts(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-", "-1", "1-", "+1", "1-+2", "65536", "1-65536", "2-1", "http", "1-2-3", " 1", "0x50", "1,2"} {
		if got, err := ParsePorts(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// Both lists in one ruleset with the files; no list handles nothing, and an empty one handles and grants nothing.
func TestPlanLandlock_Ports(t *testing.T) {
	p := agent()
	p.Network.ConnectPorts, p.Network.ListenPorts = ports(t, "443", "8000-8001"), ports(t, "8001", "0")
	plan := landlockOf(t, p, abiPorts)
	want := "handled net bind_tcp connect_tcp\n"
	rules := "port 0: bind_tcp\n  port 443: connect_tcp\n  port 8000: connect_tcp\n  port 8001: bind_tcp connect_tcp\n"
	if text := plan.String(); !strings.Contains(text, want) || !strings.Contains(text, rules) || plan.HandledFS == 0 {
		t.Errorf("got\n%s", text)
	}
	p.Network.ListenPorts = nil
	if plan := landlockOf(t, p, 7); plan.HandledNet != netConnectTCP {
		t.Errorf("connect alone: %s", plan)
	}
	p.Network.ConnectPorts, p.Network.ListenPorts = nil, []PortRange{}
	if plan := landlockOf(t, p, 7); plan.HandledNet != netBindTCP || len(plan.NetRules) != 0 {
		t.Errorf("an empty list: %s", plan)
	}
	p.Network.ListenPorts = nil
	if plan := landlockOf(t, p, 7); plan.HandledNet != 0 {
		t.Errorf("no list: %s", plan)
	}
}

// Where the task can mount it has no rules for files, and the ports hold all the same: Linux refuses mounts to domains
// that restrict files.
func TestPlanLandlock_PortsWithContainers(t *testing.T) {
	p := agent()
	p.Syscalls.Packs, p.Network.ConnectPorts = []Pack{PackContainers}, []PortRange{}
	if plan := landlockOf(t, p, 7); plan.HandledFS != 0 || plan.HandledNet != netConnectTCP {
		t.Errorf("%s", plan)
	}
}

func landlockOf(t *testing.T, p *Profile, abi int) *LandlockPlan {
	t.Helper()
	plan, _, err := PlanLandlock(loadSpec(t, "docker"), p, HostFacts{LandlockABI: abi})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestPlanLandlock_PortsBelowTheNeed(t *testing.T) {
	p := agent()
	p.Network.ListenPorts = ports(t, "80")
	_, _, err := PlanLandlock(loadSpec(t, "docker"), p, HostFacts{LandlockABI: 3})
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(refused.What, "network.listenPorts") || !strings.Contains(refused.Allow, "Linux 6.7") {
		t.Errorf("got %v", err)
	}
	plan, notes, err := PlanLandlock(loadSpec(t, "docker"), p, HostFacts{LandlockABI: 3, LandlockBestEffort: true})
	if err != nil || plan.HandledNet != 0 || len(notes) != 1 || !strings.Contains(notes[0].Text, "network.listenPorts is not enforced") {
		t.Errorf("best effort: %v, %v, %v", plan, notes, err)
	}
}

// The gateway answers for its credentials at a port of its own, which the credential grants.
func TestPlanLandlock_PortOfCredentials(t *testing.T) {
	p := agent()
	p.Network = Network{Mode: NetworkGateway, ConnectPorts: []PortRange{}, Credentials: []Credential{{Name: "model"}}}
	if plan := landlockOf(t, p, 7); len(plan.NetRules) != 1 || plan.NetRules[0] != (LandlockPortRule{credentialPort, netConnectTCP}) {
		t.Errorf("%s", plan)
	}
	if a := ExplainPort(p, PortConnect, credentialPort); a.Verdict != VerdictAllowed || a.Rule != "network.credentials" {
		t.Errorf("%+v", a)
	}
}

// What connects around Landlock is refused where connections are restricted, and not elsewhere: it costs a look at each
// call's arguments.
func TestAgentFilter_FastOpen(t *testing.T) {
	p := agent()
	calls := func() (out []string) {
		for _, r := range agentFilter(p, "amd64").Refuse {
			if r.Mask == msgFastOpen {
				out = append(out, r.Syscall)
			}
		}
		return out
	}
	if got := calls(); got != nil {
		t.Errorf("without a list: %v", got)
	}
	p.Network.ConnectPorts = []PortRange{}
	if got := calls(); !slices.Equal(got, []string{"sendto", "sendmsg", "sendmmsg"}) {
		t.Errorf("with a list: %v", got)
	}
}

func TestLessOrEqual_Ports(t *testing.T) {
	profile := func(list []PortRange) *Profile { return &Profile{Network: Network{ConnectPorts: list}} }
	for _, c := range []struct {
		a, b []PortRange
		want bool
	}{
		{nil, nil, true},
		{[]PortRange{}, nil, true},
		{nil, []PortRange{}, false},
		{[]PortRange{}, ports(t, "1"), true},
		{ports(t, "80-90", "91-100"), ports(t, "80-100"), true},
		{ports(t, "80-100"), ports(t, "91-100", "80-90"), true},
		{ports(t, "80-101"), ports(t, "91-100", "80-90"), false},
		{nil, ports(t, "0-65535"), false},
	} {
		if got := LessOrEqual(profile(c.a), profile(c.b)); got != c.want {
			t.Errorf("%v below %v: %v", c.a, c.b, got)
		}
	}
	if m := Meet(profile(ports(t, "1-10")), profile(ports(t, "20"))).Network.ConnectPorts; m == nil || len(m) != 0 {
		t.Errorf("nothing in common must stay nothing, and not become all: %v", m)
	}
	// A request that takes the network away keeps what else restricts it.
	p := agent()
	p.Network.ConnectPorts = ports(t, "443")
	got, notes, err := Tighten(p, []Request{request("network", "none")})
	if err != nil || len(notes) != 1 || !notes[0].Routine || !slices.Equal(got.Network.ConnectPorts, p.Network.ConnectPorts) {
		t.Errorf("%+v, %v, %v", got, notes, err)
	}
}

func TestExplainPort(t *testing.T) {
	p := agent()
	p.Network.ConnectPorts, p.Network.ListenPorts = ports(t, "443", "8000-8100"), []PortRange{}
	for _, c := range []struct {
		use, verdict, rule, allow string
		port                      uint16
	}{
		{PortConnect, VerdictAllowed, "network.connectPorts 8000-8100", "", 8050},
		{PortConnect, VerdictRefused, "network.connectPorts", "network: {connectPorts: [..., 22]}", 22},
		{PortListen, VerdictRefused, "network.listenPorts", "network: {listenPorts: [..., 0]}", 0},
	} {
		if a := ExplainPort(p, c.use, c.port); a.Verdict != c.verdict || a.Rule != c.rule || a.Allow != c.allow {
			t.Errorf("%s %d: %+v", c.use, c.port, a)
		}
	}
	if a := ExplainHost(p, "example.com:22"); a.Verdict != VerdictRefused || a.Rule != "network.connectPorts" {
		t.Errorf("a host at a refused port: %+v", a)
	}
	if a := ExplainPort(agent(), PortConnect, 22); a.Verdict != VerdictAllowed {
		t.Errorf("without a list: %+v", a)
	}
	if text := p.Network.PortsText(); text != "listens on none, connects to 443 8000-8100 alone" {
		t.Error(text)
	}
}
