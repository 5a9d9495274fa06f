package profiles

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// dimension is one thing that profiles grant more or less of.
type dimension struct {
	// name is the path of the key in a profile file.
	name string
	// within reports whether a grants no more than b.
	within func(a, b *Profile) bool
	// meet puts what both grant into out. It must not keep parts of a or b that it would change.
	meet func(a, b, out *Profile)
}

// LessOrEqual reports whether a grants no more than b, in every dimension. Names and descriptions don't count, and the
// values of variables that a profile sets don't either. Where the profiles don't tell (what $HOME is, whether two rules
// of the gateway mean the same) the answer is false.
func LessOrEqual(a, b *Profile) bool { return len(Excess(a, b)) == 0 }

// Excess lists the dimensions in which a grants something that b does not, by the paths of their keys in a profile file.
func Excess(a, b *Profile) []string {
	switch {
	case b.Unrestricted:
		return nil
	case a.Unrestricted:
		return []string{"unrestricted"}
	}
	var out []string
	for _, d := range dimensions() {
		if !d.within(a, b) {
			out = append(out, d.name)
		}
	}
	return out
}

// Meet returns what both profiles grant, in canonical form: the largest profile that is [LessOrEqual] to both. It is
// commutative, associative and idempotent but for the name, which is that of the smaller one if there is one, else both
// with a plus sign between.
func Meet(a, b *Profile) *Profile {
	switch {
	case a.Unrestricted && b.Unrestricted:
		return &Profile{Name: meetNames(a, b), Unrestricted: true, Network: Network{Mode: NetworkHost}, Landlock: LandlockOff}
	case a.Unrestricted:
		return Meet(b, b)
	case b.Unrestricted:
		return Meet(a, a)
	}
	out := &Profile{Name: meetNames(a, b)}
	for _, n := range []*Profile{a, b} {
		if n.Name == out.Name {
			out.Extends, out.Description = n.Extends, n.Description
		}
	}
	for _, d := range dimensions() {
		d.meet(a, b, out)
	}
	out.Environment.Set = meetSet(a.Environment.Set, b.Environment.Set)
	return out
}

func meetNames(a, b *Profile) string {
	switch {
	case a.Name == b.Name || LessOrEqual(a, b):
		return a.Name
	case LessOrEqual(b, a):
		return b.Name
	}
	return strings.Join(compact(slices.Concat(strings.Split(a.Name, "+"), strings.Split(b.Name, "+"))), "+")
}

// meetSet keeps the variables of both. Of two values the smaller one stays, whoever comes first.
func meetSet(a, b map[string]string) map[string]string {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := maps.Clone(a)
	if out == nil {
		out = map[string]string{}
	}
	for k, v := range b {
		if have, ok := out[k]; !ok || v < have {
			out[k] = v
		}
	}
	return out
}

func clone(p *Profile) *Profile {
	out := *p
	return &out
}

// dimensions is the table that everything about the order of profiles goes through.
func dimensions() []dimension {
	return slices.Concat([]dimension{
		granted("capabilities", words[string](), func(p *Profile) *[]string { return &p.Capabilities }),
		granted("syscalls.packs", words[Pack](), func(p *Profile) *[]Pack { return &p.Syscalls.Packs }),
		granted("syscalls.allow", words[string](), func(p *Profile) *[]string { return &p.Syscalls.Allow }),
		denied("syscalls.deny", func(p *Profile) *[]string { return &p.Syscalls.Deny }),
		reading(),
		granted("filesystem.execute", paths(), func(p *Profile) *[]string { return &p.Filesystem.Execute }),
		granted("filesystem.write", paths(), func(p *Profile) *[]string { return &p.Filesystem.Write }),
		denied("filesystem.hide", func(p *Profile) *[]string { return &p.Filesystem.Hide }),
		granted("host.namespaces", words[namespaceKind](), func(p *Profile) *[]namespaceKind { return &p.Host.Namespaces }),
		granted("host.mounts", paths(), func(p *Profile) *[]string { return &p.Host.Mounts }),
		granted("host.devices", devices(), func(p *Profile) *[]Device { return &p.Host.Devices }),
		granted("host.sysctls", words[string](), func(p *Profile) *[]string { return &p.Host.Sysctls }),
		variablesKept(),
		denied("environment.deny", func(p *Profile) *[]string { return &p.Environment.Deny }),
		granted("trust.waive", words[string](), func(p *Profile) *[]string { return &p.Trust.Waive }),
		claim("trust.untrustedInput", func(p *Profile) *bool { return &p.Trust.UntrustedInput }),
		claim("trust.secrets", func(p *Profile) *bool { return &p.Trust.Secrets }),
		claim("trust.externalWrite", func(p *Profile) *bool { return &p.Trust.ExternalWrite }),
		ordered("enforcement.landlock", []LandlockMode{LandlockRequired, LandlockBestEffort, LandlockOff},
			LandlockRequired, func(p *Profile) *LandlockMode { return &p.Landlock }),
		ordered("evidence.mode", []string{"on", ""}, "", func(p *Profile) *string { return &p.Evidence.Mode }),
		onFull(),
		ordered("evidence.denials", []string{DenialsKernel, ""}, "", func(p *Profile) *string { return &p.Evidence.Denials }),
		onOutput(),
		ordered("exec.transaction", []string{"auto", ""}, "", func(p *Profile) *string { return &p.Exec.Transaction }),
		commit(),
		onBase(),
	}, workspaceDimensions(), networkDimensions(), limitDimensions())
}

// granted is a list that grants.
func granted[T any](name string, e elements[T], list func(*Profile) *[]T) dimension {
	return dimension{
		name:   name,
		within: func(a, b *Profile) bool { return e.within(*list(a), *list(b)) },
		meet:   func(a, b, out *Profile) { *list(out) = e.meet(*list(a), *list(b)) },
	}
}

// denied is a list that refuses.
func denied(name string, list func(*Profile) *[]string) dimension {
	return dimension{
		name:   name,
		within: func(a, b *Profile) bool { return words[string]().within(*list(b), *list(a)) },
		meet:   func(a, b, out *Profile) { *list(out) = words[string]().canonical(slices.Concat(*list(a), *list(b))) },
	}
}

// claim is a switch that grants.
func claim(name string, of func(*Profile) *bool) dimension {
	return dimension{
		name:   name,
		within: func(a, b *Profile) bool { return !*of(a) || *of(b) },
		meet:   func(a, b, out *Profile) { *of(out) = *of(a) && *of(b) },
	}
}

// ordered is a word of a list from tight to loose; empty stands for the word that "" means.
func ordered[T ~string](name string, words []T, empty T, of func(*Profile) *T) dimension {
	rank := func(p *Profile) int {
		w := *of(p)
		if w == "" {
			w = empty
		}
		return slices.Index(words, w) // what is no word is below all; Validate refuses it
	}
	return dimension{
		name:   name,
		within: func(a, b *Profile) bool { return rank(a) <= rank(b) },
		meet: func(a, b, out *Profile) {
			if i := min(rank(a), rank(b)); i >= 0 {
				*of(out) = words[i]
			}
		},
	}
}

// reading counts what may be written, because that may be read too.
func reading() dimension {
	list := func(p *Profile) []string { return slices.Concat(p.Filesystem.Read, p.Filesystem.Write) }
	return dimension{
		name:   "filesystem.read",
		within: func(a, b *Profile) bool { return paths().within(list(a), list(b)) },
		meet:   func(a, b, out *Profile) { out.Filesystem.Read = paths().meet(list(a), list(b)) },
	}
}

// variablesKept is the list of variables, of which the empty one keeps all. What two lists have nothing in common of
// becomes a name that no variable has.
func variablesKept() dimension {
	list := func(p *Profile) []string {
		if len(p.Environment.Allow) == 0 {
			return []string{"*"}
		}
		return p.Environment.Allow
	}
	return dimension{
		name: "environment.allow",
		within: func(a, b *Profile) bool {
			return variablePatterns().within(without(slices.Clone(list(a)), []string{noVariable}), list(b))
		},
		meet: func(a, b, out *Profile) {
			kept := without(variablePatterns().meet(list(a), list(b)), []string{noVariable})
			switch {
			case len(kept) == 0:
				kept = []string{noVariable}
			case kept[0] == "*":
				kept = nil
			}
			out.Environment.Allow = kept
		},
	}
}

// noVariable is an entry of a list of variables that keeps none.
const noVariable = "-"

func onFull() dimension {
	rank := func(p *Profile) int {
		switch {
		case p.Evidence.Mode == "":
			return 2
		case p.Evidence.OnFull == "gap":
			return 1
		}
		return 0
	}
	return dimension{
		name:   "evidence.onFull",
		within: func(a, b *Profile) bool { return rank(a) <= rank(b) },
		meet:   func(a, b, out *Profile) { out.Evidence.OnFull = []string{"stop", "gap", ""}[min(rank(a), rank(b))] },
	}
}

func onOutput() dimension {
	rank := func(p *Profile) int {
		switch {
		case p.Limits.OutputBytes == 0:
			return 2
		case p.Limits.OnOutput == OutputDiscard:
			return 1
		}
		return 0
	}
	return dimension{
		name:   "limits.onOutput",
		within: func(a, b *Profile) bool { return rank(a) <= rank(b) },
		meet: func(a, b, out *Profile) {
			out.Limits.OnOutput = []string{OutputStop, OutputDiscard, ""}[min(rank(a), rank(b))]
		},
	}
}

func commit() dimension {
	rank := func(p *Profile) int {
		if p.Exec.Transaction == "" {
			return 3
		}
		return max(0, slices.Index([]string{"never", "success", "always"}, p.Exec.Commit)) + 2*boolInt(p.Exec.Commit == "")
	}
	return dimension{
		name:   "exec.commit",
		within: func(a, b *Profile) bool { return rank(a) <= rank(b) },
		meet: func(a, b, out *Profile) {
			out.Exec.Commit = []string{"never", "success", "always", ""}[min(rank(a), rank(b))]
		},
	}
}

// onBase are commands that get no layer of their own; without transactions that is all of them.
func onBase() dimension {
	words := words[string]()
	return dimension{
		name: "exec.base",
		within: func(a, b *Profile) bool {
			return b.Exec.Transaction == "" || a.Exec.Transaction != "" && words.within(a.Exec.Base, b.Exec.Base)
		},
		meet: func(a, b, out *Profile) {
			switch {
			case a.Exec.Transaction == "":
				out.Exec.Base = words.canonical(b.Exec.Base)
			case b.Exec.Transaction == "":
				out.Exec.Base = words.canonical(a.Exec.Base)
			default:
				out.Exec.Base = words.meet(a.Exec.Base, b.Exec.Base)
			}
		},
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// limitDimensions are bounds, of which 0 is none.
func limitDimensions() []dimension {
	return []dimension{
		bound("limits.memory", func(p *Profile) *int64 { return &p.Limits.MemoryBytes }),
		bound("limits.pids", func(p *Profile) *int64 { return &p.Limits.PIDs }),
		bound("limits.cpus", func(p *Profile) *float64 { return &p.Limits.CPUs }),
		bound("limits.wallClock", func(p *Profile) *Duration { return &p.Limits.WallClock }),
		bound("limits.cpuTime", func(p *Profile) *Duration { return &p.Limits.CPUTime }),
		bound("limits.outputBytes", func(p *Profile) *int64 { return &p.Limits.OutputBytes }),
		bound("limits.openFiles", func(p *Profile) *int64 { return &p.Limits.OpenFiles }),
		bound("limits.egressBytes", func(p *Profile) *int64 { return &p.Limits.EgressBytes }),
		bound("limits.ingressBytes", func(p *Profile) *int64 { return &p.Limits.IngressBytes }),
		bound("limits.egressConnections", func(p *Profile) *int64 { return &p.Limits.EgressConnections }),
		bound("limits.egressRequests", func(p *Profile) *int64 { return &p.Limits.EgressRequests }),
		bound("limits.layerBytes", func(p *Profile) *int64 { return &p.Limits.LayerBytes }),
		bound("limits.layerInodes", func(p *Profile) *int64 { return &p.Limits.LayerInodes }),
		bound("exec.wallClock", func(p *Profile) *Duration { return &p.Exec.WallClock }),
	}
}

func bound[T ~int64 | ~float64](name string, of func(*Profile) *T) dimension {
	return dimension{
		name:   name,
		within: func(a, b *Profile) bool { return *of(b) == 0 || *of(a) != 0 && *of(a) <= *of(b) },
		meet: func(a, b, out *Profile) {
			x, y := *of(a), *of(b)
			if x == 0 || y != 0 && y < x {
				x = y
			}
			*of(out) = x
		},
	}
}

// publicAndPrivate is all addresses, of both families.
func publicAndPrivate() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}
