package profiles

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PortRange is TCP ports, both ends included.
type PortRange struct{ First, Last uint16 }

// ParsePorts reads a port or a range of ports: 443, 8000-8100.
func ParsePorts(s string) (PortRange, error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	switch {
	case err != nil || err2 != nil || first[0] == '+' || last[0] == '+':
		return PortRange{}, fmt.Errorf("%q is neither a port nor a range of ports: want one like 443 or 8000-8100", s)
	case from > to:
		return PortRange{}, fmt.Errorf("%q: the range ends before it begins", s)
	}
	return PortRange{uint16(from), uint16(to)}, nil
}

func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return strconv.Itoa(int(r.First)) + "-" + strconv.Itoa(int(r.Last))
}

// MarshalText spells the range as [ParsePorts] reads it.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is [ParsePorts].
func (r *PortRange) UnmarshalText(text []byte) (err error) {
	*r, err = ParsePorts(string(text))
	return err
}

// What a task does with a port, for [ExplainPort].
const (
	PortConnect = "connect"
	PortListen  = "listen"
)

// portSet is one of the two lists of ports. A nil list restricts nothing, an empty one grants nothing.
type portSet struct {
	use, field string
	ports      *[]PortRange
	access     uint64
}

func (n *Network) portSets() []portSet {
	return []portSet{
		{PortListen, "network.listenPorts", &n.ListenPorts, netBindTCP},
		{PortConnect, "network.connectPorts", &n.ConnectPorts, netConnectTCP},
	}
}

// maxPorts bounds a list: each port is a rule, and a system call at every start.
const maxPorts = 1024

// aroundPorts are calls whose arguments have to be looked at where ports are restricted, since what they can do
// connects around Landlock: MPTCP, TCP Fast Open, and both by io_uring.
func aroundPorts() []string {
	return []string{"socket", "sendto", "sendmsg", "sendmmsg", "io_uring_setup"}
}

func (p *Profile) validatePorts() error {
	for _, set := range p.Network.portSets() {
		ports := *set.ports
		if ports == nil {
			continue
		}
		total := 0
		for _, r := range ports {
			if r.First > r.Last {
				return fmt.Errorf("%s: %s: the range ends before it begins", set.field, r)
			}
			if r.First == 0 && set.use == PortConnect {
				return fmt.Errorf("%s: nobody can connect to port 0", set.field)
			}
			total += int(r.Last) - int(r.First) + 1
		}
		if total > maxPorts {
			return fmt.Errorf("%s: %d ports, at most %d: without the list all are granted", set.field, total, maxPorts)
		}
		if p.Landlock == LandlockOff {
			return fmt.Errorf("%s: means nothing with enforcement.landlock %s: nothing else enforces it", set.field, LandlockOff)
		}
		if slices.Contains(p.Capabilities, "CAP_NET_RAW") {
			return fmt.Errorf("%s: does not go with CAP_NET_RAW, which sends below the rules", set.field)
		}
		for _, call := range aroundPorts() {
			if slices.Contains(p.Syscalls.Allow, call) {
				return fmt.Errorf("%s: does not go with syscalls.allow %s, which lifts the rules on its arguments: they keep MPTCP and TCP Fast Open from connecting around the ports", set.field, call)
			}
		}
	}
	return nil
}

// ports restricts what TCP ports are connected to and bound. Landlock judges the port that the program names, before any
// rule of the network translates it: with the gateway that is the port of the destination.
func (l *landlockBuilder) ports() error {
	for _, set := range l.profile.Network.portSets() {
		if *set.ports == nil {
			continue
		}
		ok, err := l.require(abiPorts, "the rule on the ports of "+set.field)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		l.plan.HandledNet |= set.access
		for _, r := range *set.ports {
			for port := int(r.First); port <= int(r.Last); port++ {
				l.grantPort(uint16(port), set.access) //nolint:gosec // at most r.Last
			}
		}
		if set.use == PortConnect && l.profile.Network.Mode == NetworkGateway && len(l.profile.Network.Credentials) > 0 {
			l.grantPort(credentialPort, set.access)
		}
	}
	slices.SortFunc(l.plan.NetRules, func(a, b LandlockPortRule) int { return int(a.Port) - int(b.Port) })
	return nil
}

// credentialPort is where the gateway answers for its credentials, under names of its own: granting the credential
// grants the port.
const credentialPort = 80

func (l *landlockBuilder) grantPort(port uint16, access uint64) {
	for i := range l.plan.NetRules {
		if r := &l.plan.NetRules[i]; r.Port == port {
			r.Access |= access
			return
		}
	}
	l.plan.NetRules = append(l.plan.NetRules, LandlockPortRule{Port: port, Access: access})
}

// ports refuses TCP Fast Open where connections are restricted: a first segment that is sent with MSG_FASTOPEN connects,
// and Landlock does not see that (integration/network, TestPorts). The answer is that of a kernel that has it switched off,
// after which programs connect.
//
// With TCP_ULP a TCP socket becomes one of a driver, and where the host has it loaded "smc" is such a one: its connections are
// opened, and its ports bound, by the kernel itself, where Landlock does not look (TestAttack_SocketTurnedIntoAnother).
// Programs that would leave TLS to the kernel go on without.
func (b *filterBuilder) ports() {
	if b.profile.Network.ConnectPorts != nil || b.profile.Network.ListenPorts != nil {
		b.refuse(SeccompRefusal{Syscall: "setsockopt", Arg: 2, Value: tcpULP, And: &SeccompValue{Arg: 1, Value: solTCP}, Errno: ePERM})
	}
	if b.profile.Network.ConnectPorts == nil {
		return
	}
	for _, c := range []struct {
		call string
		arg  uint8
	}{{"sendto", 3}, {"sendmsg", 2}, {"sendmmsg", 3}} {
		b.refuse(SeccompRefusal{Syscall: c.call, Arg: c.arg, Mask: msgFastOpen, Value: msgFastOpen, Errno: eOPNOTSUPP})
	}
}

// Options of setsockopt(2). Source: linux/tcp.h.
const solTCP, tcpULP = 6, 31

// msgFastOpen is MSG_FASTOPEN. Source: linux/socket.h.
const msgFastOpen = 0x20000000

// ExplainPort says what a profile makes of connecting to a TCP port, or of listening on one.
func ExplainPort(p *Profile, use string, port uint16) Answer {
	if p.Unrestricted {
		return everything()
	}
	for _, set := range p.Network.portSets() {
		if set.use != use {
			continue
		}
		if *set.ports == nil {
			return Answer{Verdict: VerdictAllowed, Rule: set.field, Why: "the profile has no such list; the other rules on the network hold"}
		}
		for _, r := range *set.ports {
			if r.First <= port && port <= r.Last {
				return Answer{Verdict: VerdictAllowed, Rule: set.field + " " + r.String(), Why: "the other rules on the network hold"}
			}
		}
		if use == PortConnect && port == credentialPort && p.Network.Mode == NetworkGateway && len(p.Network.Credentials) > 0 {
			return Answer{Verdict: VerdictAllowed, Rule: "network.credentials", Why: "the gateway answers there"}
		}
		return Answer{
			VerdictRefused, set.field, "EACCES, no entry has the port",
			strings.Replace(set.field, ".", ": {", 1) + ": [..., " + strconv.Itoa(int(port)) + "]}",
		}
	}
	return Answer{Verdict: VerdictRefused, Rule: "network", Why: "want " + PortConnect + " or " + PortListen}
}

// portsDimension is the order of a list of ports, of which nil is all.
func portsDimension(name string, of func(*Profile) *[]PortRange) dimension {
	return dimension{
		name: name,
		within: func(a, b *Profile) bool {
			return *of(b) == nil || *of(a) != nil && slices.Equal(commonPorts(*of(a), *of(b)), canonicalPorts(*of(a)))
		},
		meet: func(a, b, out *Profile) {
			switch x, y := *of(a), *of(b); {
			case x == nil:
				*of(out) = canonicalPorts(y)
			case y == nil:
				*of(out) = canonicalPorts(x)
			default:
				*of(out) = commonPorts(x, y)
			}
		},
	}
}

// canonicalPorts sorts, and joins what touches. Only nil becomes nil.
func canonicalPorts(in []PortRange) []PortRange {
	if in == nil {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(in), func(a, b PortRange) int {
		return (int(a.First)-int(b.First))<<16 + int(a.Last) - int(b.Last)
	})
	out := make([]PortRange, 0, len(in))
	for _, r := range sorted {
		if n := len(out); n > 0 && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// commonPorts is never nil.
func commonPorts(a, b []PortRange) []PortRange {
	out := []PortRange{}
	for _, x := range a {
		for _, y := range b {
			if first, last := max(x.First, y.First), min(x.Last, y.Last); first <= last {
				out = append(out, PortRange{first, last})
			}
		}
	}
	return canonicalPorts(out)
}

func portTexts(in []PortRange) []string {
	out := make([]string, len(in))
	for i := range in {
		out[i] = in[i].String()
	}
	return out
}

// portWords completes "connects ..." and "listens ...".
func portWords(use string, ports []PortRange) string {
	to := "to "
	if use == PortListen {
		to = "on "
	}
	if len(ports) == 0 {
		return to + "none"
	}
	return to + strings.Join(portTexts(ports), " ") + " alone"
}

// PortsText is what a profile makes of TCP ports, for people: "" if it restricts none.
func (n *Network) PortsText() string {
	var out []string
	for _, set := range n.portSets() {
		if *set.ports != nil {
			out = append(out, set.use+"s "+portWords(set.use, *set.ports))
		}
	}
	return strings.Join(out, ", ")
}
