package profiles

import (
	"fmt"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// What a task can read about its own policy: a directory of the container, read-only, with these files.
const (
	InForceDir     = "/dev/agentsafe"
	InForcePolicy  = "policy.json"
	InForceText    = "policy.txt"
	InForceDenials = "denials.jsonl"
	// InForceAuthority is who signs what the task sees where TLS is inspected, InForceBundle that and the host's own
	// authorities in PEM, InForceKeystore the latter as Java wants it; there only under a profile that has TLS inspected.
	InForceAuthority = "authority.pem"
	InForceBundle    = "trusted.pem"
	InForceKeystore  = "trusted.jks"
	// PolicyVariable and DenialsVariable tell a task where they are.
	PolicyVariable  = "AGENTSAFE_POLICY"
	DenialsVariable = "AGENTSAFE_DENIALS"
)

// InForce is the policy in force in the words of a profile, for the task itself: JSON for programs, and a short text for
// people and models. Variables of paths are expanded as they are for the spec; what concerns the host alone (where a
// credential comes from, which of its paths and devices may be passed in) is left out. watched says that refusals are
// written to [InForceDenials].
func (plan *Plan) InForce(p *Profile, spec *specs.Spec, watched bool) (policy []byte, text string) {
	told := *expandPaths(p, ExpandVariables(spec))
	told.Host, told.Trust.Waive = Host{}, nil
	told.Network.Credentials = nil
	for _, c := range p.Network.Credentials {
		c.File, c.Command = "", nil
		told.Network.Credentials = append(told.Network.Credentials, c)
	}
	hash := plan.Hash()
	j := jsonWriter{buf: make([]byte, 0, 4<<10)}
	j.object(func() {
		j.text("apiVersion", "agentsafe.dev/v1")
		j.text("kind", "PolicyInForce")
		j.text("policyHash", hash)
		if watched {
			j.text("denials", InForceDir+"/"+InForceDenials)
		}
		j.key("profile")
		j.object(func() { told.fields(&j) })
		if plan.Landlock != nil {
			j.number("landlockABI", uint64(plan.Landlock.ABI)) //nolint:gosec // a small number
		}
		j.list("notes", len(plan.Notes), func(i int) {
			j.text("rule", plan.Notes[i].Rule)
			j.text("text", plan.Notes[i].Text)
		})
	})
	return append(j.buf, '\n'), told.inForceText(hash, watched)
}

// inForceText is the short text. What a profile does not restrict has no line.
func (p *Profile) inForceText(hash string, watched bool) string {
	var b strings.Builder
	about := p.Name
	if p.Description != "" {
		about += ": " + p.Description
	}
	fmt.Fprintf(&b, "This task runs under agentsafe, profile %s.\n\n", about)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	f := &p.Filesystem
	for _, list := range []struct {
		name  string
		paths []string
	}{{"read", f.Read}, {"write", f.Write}, {"execute", f.Execute}, {"hidden", f.Hide}} {
		if len(list.paths) > 0 {
			line(list.name, "%s", strings.Join(list.paths, " "))
		} else if list.name != "hidden" {
			line(list.name, "nothing")
		}
	}
	switch f.Workspace.mode() {
	case WorkspaceOverlay:
		line("workspace", "what is written to mounted folders is kept in a layer; the host sees it once somebody promotes it")
	case WorkspaceReadonly:
		line("workspace", "mounted folders are read-only")
	case WorkspaceDirect:
	}
	p.networkText(line)
	if s := &p.Syscalls; len(s.Packs)+len(s.Allow)+len(s.Deny) > 0 {
		line("calls", "a list of common ones; packs %v, allowed %v, refused %v", s.Packs, s.Allow, s.Deny)
	}
	line("", "a known system call that is refused answers EPERM, an unknown one ENOSYS")
	if e := &p.Environment; len(e.Deny) > 0 {
		line("variables", "removed: %s", strings.Join(e.Deny, " "))
	}
	p.limitsText(line)
	fmt.Fprintf(&b, "\nFor programs: %s/%s. Policy %s.\n", InForceDir, InForcePolicy, hash)
	if watched {
		fmt.Fprintf(&b, "What was refused: %s/%s, a JSON object a line, with what would allow it.\n", InForceDir, InForceDenials)
	}
	b.WriteString("What is refused stays refused while the task runs: do without it, or ask whoever started the task.\n")
	return b.String()
}

func (p *Profile) networkText(line func(name, format string, args ...any)) {
	n := &p.Network
	switch n.Mode {
	case NetworkGateway:
		line("network", "by name: %s; everything else is refused", strings.Join(append(append([]string{}, n.RuleSets...), n.Allow...), " "))
		if len(n.Deny) > 0 {
			line("", "refused all the same: %s", strings.Join(n.Deny, " "))
		}
		if n.Inspects() != "" {
			line("", "where a rule has methods or a path, TLS is inspected: programs trust %s/%s for that, by SSL_CERT_FILE and the like", InForceDir, InForceBundle)
		}
	case NetworkEngine:
		line("network", "public addresses; private ones and the cloud's metadata are unreachable")
	case NetworkHost:
		line("network", "the host's")
	case NetworkNone, "":
		line("network", "none but loopback")
	}
	for _, set := range n.portSets() {
		if *set.ports != nil {
			line("TCP ports", "%ss %s", set.use, portWords(set.use, *set.ports))
		}
	}
}

func (p *Profile) limitsText(line func(name, format string, args ...any)) {
	l := &p.Limits
	var out []string
	for _, b := range []struct {
		name  string
		bytes int64
	}{{"memory", l.MemoryBytes}, {"output", l.OutputBytes}, {"egress", l.EgressBytes}, {"layers", l.LayerBytes}} {
		if b.bytes > 0 {
			out = append(out, fmt.Sprintf("%s %d bytes", b.name, b.bytes))
		}
	}
	for _, d := range []struct {
		name string
		time time.Duration
	}{{"wall clock", l.WallClock}, {"CPU time", l.CPUTime}, {"an exec", p.Exec.WallClock}} {
		if d.time > 0 {
			out = append(out, d.name+" "+d.time.String())
		}
	}
	if l.PIDs > 0 {
		out = append(out, fmt.Sprintf("%d processes", l.PIDs))
	}
	if l.CPUs > 0 {
		out = append(out, fmt.Sprintf("%g CPUs", l.CPUs))
	}
	if l.OpenFiles > 0 {
		out = append(out, fmt.Sprintf("%d open files", l.OpenFiles))
	}
	if len(out) > 0 {
		line("limits", "%s", strings.Join(out, ", "))
	}
}
