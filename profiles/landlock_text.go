package profiles

import (
	"fmt"
	"strings"
)

// String lists the ruleset for people.
func (l *LandlockPlan) String() string {
	if l == nil {
		return "landlock none\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "landlock ABI %d\n  handled %s\n", l.ABI, rightNames(l.HandledFS))
	if l.HandledNet != 0 {
		fmt.Fprintf(&b, "  handled net %s\n", netNames(l.HandledNet))
	}
	if l.Scoped != 0 {
		fmt.Fprintf(&b, "  scoped %#x (1 abstract sockets, 2 signals)\n", l.Scoped)
	}
	for _, r := range l.Rules {
		optional := ""
		if r.Optional {
			optional = " (if it exists)"
		}
		fmt.Fprintf(&b, "  %s%s: %s\n", r.Path, optional, rightNames(r.Access))
	}
	for _, r := range l.NetRules {
		fmt.Fprintf(&b, "  port %d: %s\n", r.Port, netNames(r.Access))
	}
	return b.String()
}

// rightNames spells LANDLOCK_ACCESS_FS_ bits.
func rightNames(rights uint64) string {
	names := []string{
		"execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file", "make_char", "make_dir", "make_reg",
		"make_sock", "make_fifo", "make_block", "make_sym", "refer", "truncate", "ioctl_dev", "resolve_unix",
	}
	var out []string
	for i, n := range names {
		if rights&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	return strings.Join(out, " ")
}

// netNames spells LANDLOCK_ACCESS_NET_ bits.
func netNames(rights uint64) string {
	var out []string
	for _, n := range []struct {
		bit  uint64
		name string
	}{{netBindTCP, "bind_tcp"}, {netConnectTCP, "connect_tcp"}} {
		if rights&n.bit != 0 {
			out = append(out, n.name)
		}
	}
	return strings.Join(out, " ")
}
