package profiles

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AnnotationPrefix begins the annotations of a spec that ask for a tighter policy; ProfileAnnotation names a profile.
const (
	AnnotationPrefix  = "agentsafe.dev/"
	ProfileAnnotation = AnnotationPrefix + "profile"
)

// Request is one wish of somebody who is not the administrator: of a pod's author, an image, a command line.
type Request struct {
	// Key is the annotation without its prefix: "network", "memory".
	Key, Value string
	// Source is for messages: "annotation agentsafe.dev/network", "variable AGENTSAFE_NETWORK".
	Source string
}

// requestKey is a key that [Tighten] knows.
type requestKey struct {
	name string
	// set puts the wish into a copy of the profile.
	set func(p *Profile, value string) error
}

// requestKeys lists what can be tightened without a profile of one's own.
func requestKeys() []requestKey { //nolint:funlen // a table
	return []requestKey{
		{"network", func(p *Profile, v string) error {
			if p.Network.Mode = NetworkMode(v); p.Network.Mode == NetworkNone {
				p.Network = Network{Mode: NetworkNone, ConnectPorts: p.Network.ConnectPorts, ListenPorts: p.Network.ListenPorts}
			}
			return oneOf("network", p.Network.Mode, NetworkNone, NetworkGateway, NetworkEngine, NetworkHost)
		}},
		{"connect-ports", func(p *Profile, v string) (err error) {
			p.Network.ConnectPorts, err = parsePortList(v)
			return err
		}},
		{"listen-ports", func(p *Profile, v string) (err error) {
			p.Network.ListenPorts, err = parsePortList(v)
			return err
		}},
		{"workspace", func(p *Profile, v string) error {
			p.Filesystem.Workspace.Mode = WorkspaceMode(v)
			return oneOf("workspace", p.Filesystem.Workspace.Mode, WorkspaceDirect, WorkspaceOverlay, WorkspaceReadonly)
		}},
		// A worktree in the place of a repository, which has to be overlaid for that.
		{"worktree", func(p *Profile, v string) error {
			p.Filesystem.Workspace.Mode = WorkspaceOverlay
			if v == "" {
				return errors.New("want the name of a branch, or auto")
			}
			return nil
		}},
		{"memory", func(p *Profile, v string) (err error) {
			p.Limits.MemoryBytes, err = ParseBytes(v)
			return err
		}},
		{"pids", func(p *Profile, v string) (err error) {
			p.Limits.PIDs, err = parsePositive(v)
			return err
		}},
		{"cpus", func(p *Profile, v string) (err error) {
			if p.Limits.CPUs, err = strconv.ParseFloat(v, 64); err == nil && !(p.Limits.CPUs > 0 && p.Limits.CPUs < 1<<16) {
				err = fmt.Errorf("%q is not a number of CPUs", v)
			}
			return err
		}},
		{"wall-clock", func(p *Profile, v string) (err error) {
			p.Limits.WallClock, err = ParseDuration(v)
			return err
		}},
		{"cpu-time", func(p *Profile, v string) (err error) {
			p.Limits.CPUTime, err = ParseDuration(v)
			return err
		}},
		{"open-files", func(p *Profile, v string) (err error) {
			p.Limits.OpenFiles, err = parsePositive(v)
			return err
		}},
		{"egress-bytes", func(p *Profile, v string) (err error) {
			p.Limits.EgressBytes, err = ParseBytes(v)
			return err
		}},
		{"exec-wall-clock", func(p *Profile, v string) (err error) {
			p.Exec.WallClock, err = ParseDuration(v)
			return err
		}},
		{"output-bytes", func(p *Profile, v string) (err error) {
			p.Limits.OutputBytes, err = ParseBytes(v)
			return err
		}},
		{"layer-bytes", func(p *Profile, v string) (err error) {
			p.Limits.LayerBytes, err = ParseBytes(v)
			return err
		}},
		{"layer-inodes", func(p *Profile, v string) (err error) {
			p.Limits.LayerInodes, err = parsePositive(v)
			return err
		}},
		{"drop-capabilities", func(p *Profile, v string) error {
			var drop []string
			for _, c := range split(v) {
				if c == "all" {
					p.Capabilities = nil
					return nil
				}
				if c = strings.ToUpper(c); !strings.HasPrefix(c, "CAP_") {
					c = "CAP_" + c
				}
				if !knownCapability(c) {
					return fmt.Errorf("%q is not a capability", c)
				}
				drop = append(drop, c)
			}
			p.Capabilities = without(slices.Clone(p.Capabilities), drop)
			return nil
		}},
		{"deny-syscalls", func(p *Profile, v string) error {
			p.Syscalls.Deny = slices.Concat(p.Syscalls.Deny, split(v))
			return nil
		}},
		{"deny-env", func(p *Profile, v string) error {
			p.Environment.Deny = slices.Concat(p.Environment.Deny, split(v))
			return nil
		}},
		{"hide", func(p *Profile, v string) error {
			p.Filesystem.Hide = slices.Concat(p.Filesystem.Hide, split(v))
			return nil
		}},
		{"transaction", func(p *Profile, v string) error {
			p.Exec.Transaction = v
			return oneOf("transaction", v, "auto")
		}},
		{"evidence", func(p *Profile, v string) error {
			p.Evidence.Mode = v
			return oneOf("evidence", v, "on")
		}},
		// For the evidence alone: they change nothing.
		{"owner", remark},
		{"task", remark},
		{"traceparent", remark},
		{KeyInputs, func(p *Profile, v string) error {
			const most = 4096
			switch {
			case len(v) > most:
				return fmt.Errorf("%d bytes, at most %d", len(v), most)
			case p.Evidence.Mode != "on":
				return fmt.Errorf("profile %q keeps no evidence to hold the digests of inputs (%sevidence: on)", p.Name, AnnotationPrefix)
			}
			return nil
		}},
	}
}

// KeyInputs names files and directories of the container, with commas between, whose digests are to be in its evidence.
const KeyInputs = "inputs"

// remark accepts what is only written down.
func remark(_ *Profile, v string) error {
	const most = 256
	if len(v) > most {
		return fmt.Errorf("%d bytes, at most %d", len(v), most)
	}
	return nil
}

// RequestKeys lists the keys of [Request] that [Tighten] knows.
func RequestKeys() []string {
	var out []string
	for _, k := range requestKeys() {
		out = append(out, k.name)
	}
	return out
}

// Tighten returns what the profile and the requests both grant. A request that asks for more than the profile changes
// nothing and is noted. One that is not understood is an error: whoever asks for protection must not go without.
func Tighten(p *Profile, requests []Request) (*Profile, []Note, error) {
	var notes []Note
	for _, r := range requests {
		i := slices.IndexFunc(requestKeys(), func(k requestKey) bool { return k.name == r.Key })
		switch {
		case i < 0:
			return nil, nil, fmt.Errorf("%s: not a key, want profile, %s", r.Source, strings.Join(RequestKeys(), ", "))
		case p.Unrestricted:
			return nil, nil, fmt.Errorf("%s: the profile %q has no rules that could be tightened; %sprofile names another", r.Source, p.Name, AnnotationPrefix)
		}
		wish := *p
		if err := requestKeys()[i].set(&wish, r.Value); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", r.Source, err)
		}
		if more := Excess(&wish, p); len(more) > 0 {
			notes = append(notes, Note{Rule: "profile", Text: fmt.Sprintf("%s=%s asks for more than the profile %q grants (%s), which it does not get",
				r.Source, r.Value, p.Name, strings.Join(more, ", "))})
		}
		if LessOrEqual(p, &wish) {
			continue
		}
		tighter := Meet(p, &wish)
		tighter.Name, tighter.Extends, tighter.Description = p.Name, p.Extends, p.Description
		if err := tighter.Validate(); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", r.Source, err)
		}
		p = tighter
		notes = append(notes, Note{Rule: "profile", Text: r.Source + "=" + r.Value, Routine: true})
	}
	return p, notes, nil
}

// split reads a list with commas.
func split(v string) []string {
	var out []string
	for w := range strings.SplitSeq(v, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// parsePortList reads ports and ranges with commas between, or none. It is never nil.
func parsePortList(v string) ([]PortRange, error) {
	out := []PortRange{}
	if v == "none" {
		return out, nil
	}
	words := split(v)
	if len(words) == 0 {
		return nil, fmt.Errorf("%q is no list of ports: want some, or none", v)
	}
	for _, w := range words {
		r, err := ParsePorts(w)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func parsePositive(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("%q is not a positive number", s)
	}
	return v, nil
}

// ParseBytes reads a number of bytes with an optional binary unit: 4096, 16MiB, 2GiB.
func ParseBytes(s string) (int64, error) {
	shift := 0
	number := s
	for _, u := range []struct {
		suffix string
		shift  int
	}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}} {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			number, shift = n, u.shift
			break
		}
	}
	v, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || v <= 0 || v > math.MaxInt64>>1>>shift {
		return 0, fmt.Errorf("%q is not a size: want bytes, or a number with KiB, MiB, GiB or TiB", s)
	}
	return v << shift, nil
}

// ParseDuration reads a time span: 90s, 15m, 1h30m.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a time span: want one like 90s, 15m or 1h30m", s)
	}
	return d, nil
}
