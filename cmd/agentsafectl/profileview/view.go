package profileview

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/agentsafe/agentsafe/profiles"
)

// capability is one row of the matrix.
type capability struct {
	name string
	of   func(p *profiles.Profile) string
}

// capabilities are the questions that people have about a profile.
func capabilities() []capability {
	return []capability{
		{"reads files", func(p *profiles.Profile) string { return list(p.Filesystem.Read, "nothing") }},
		{"executes files", func(p *profiles.Profile) string { return list(p.Filesystem.Execute, "nothing") }},
		{"writes files", func(p *profiles.Profile) string { return list(p.Filesystem.Write, "nothing") }},
		{"hidden files", func(p *profiles.Profile) string { return list(p.Filesystem.Hide, "-") }},
		{"workspace", workspace},
		{"network", network},
		{"packages", packages},
		{"private addresses", private},
		{"TCP ports", func(p *profiles.Profile) string {
			text := p.Network.PortsText()
			return pick(text != "", text, "all")
		}},
		{"secrets", secrets},
		{"variables", variables},
		{"capabilities", func(p *profiles.Profile) string {
			return list(trimAll(p.Capabilities, "CAP_"), "none")
		}},
		{"system calls", syscalls},
		{"host", host},
		{"limits", limits},
		{"each exec", execs},
		{"what survives", survives},
		{"who authorises", authorises},
		{"evidence", func(p *profiles.Profile) string {
			return pick(p.Evidence.Mode == "on", "recorded", "-") + pick(p.Evidence.Denials != "", ", the kernel's refusals too", "")
		}},
		{"Rule of Two", trust},
		{"kernel too old", func(p *profiles.Profile) string {
			return map[profiles.LandlockMode]string{"": "refused", profiles.LandlockRequired: "refused", profiles.LandlockBestEffort: "noted", profiles.LandlockOff: "no file rules"}[p.Landlock]
		}},
		{"this version", func(p *profiles.Profile) string {
			if err := p.Validate(); err != nil {
				return "refuses it: " + err.Error()
			}
			return "enforces it"
		}},
	}
}

// Matrix puts profiles beside each other, one row for each question.
func Matrix(all []*profiles.Profile) *Table {
	t := &Table{Heading: []string{"what"}}
	for _, p := range all {
		t.Heading = append(t.Heading, p.Name)
	}
	for _, c := range capabilities() {
		row := []string{c.name}
		for _, p := range all {
			if p.Unrestricted {
				row = append(row, pick(c.name == "this version", "enforces it", "as the engine says"))
			} else {
				row = append(row, c.of(p))
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// Show is the matrix of one profile, with what it is called.
func Show(p *profiles.Profile) *Table {
	t := Matrix([]*profiles.Profile{p})
	t.Heading = []string{"what", "value"}
	top := [][]string{{"name", p.Name}, {"extends", pick(p.Extends != "", p.Extends, "-")}, {"description", p.Description}}
	t.Rows = append(top, t.Rows...)
	return t
}

func workspace(p *profiles.Profile) string {
	w := p.Filesystem.Workspace
	out := string(w.Mode)
	switch w.Mode {
	case "", profiles.WorkspaceDirect:
		return "writes reach the host"
	case profiles.WorkspaceReadonly:
		out = "read-only"
	case profiles.WorkspaceOverlay:
		out = "writes go to a layer"
	}
	if len(w.Paths) > 0 {
		out += " (" + strings.Join(w.Paths, " ") + ")"
	}
	return out
}

func network(p *profiles.Profile) string {
	switch n := p.Network; n.Mode {
	case profiles.NetworkEngine:
		return "public addresses"
	case profiles.NetworkHost:
		return "the host's"
	case profiles.NetworkGateway:
		out := list(n.Allow, "")
		if len(n.Deny) > 0 {
			out += " but " + strings.Join(n.Deny, " ")
		}
		if out == "" {
			out = pick(len(n.RuleSets) > 0, "packages only", "nothing")
		}
		return out
	case profiles.NetworkNone:
	}
	return "none"
}

func packages(p *profiles.Profile) string {
	switch p.Network.Mode {
	case profiles.NetworkGateway:
		return list(p.Network.RuleSets, "none")
	case profiles.NetworkEngine, profiles.NetworkHost:
		return "all"
	case profiles.NetworkNone:
	}
	return "none"
}

func private(p *profiles.Profile) string {
	var out []string
	for _, a := range slices.Concat(p.Network.AllowPrivate, p.Network.Addresses) {
		out = append(out, a.String())
	}
	return list(out, pick(p.Network.Mode == profiles.NetworkHost, "all", "-"))
}

func secrets(p *profiles.Profile) string {
	switch t := p.Trust; {
	case t.Secrets && t.UntrustedInput && t.ExternalWrite:
		return "noted"
	case t.Secrets:
		return "allowed"
	case len(p.Network.Credentials) > 0:
		return "refused; the gateway adds " + strconv.Itoa(len(p.Network.Credentials))
	}
	return pick(len(p.Trust.Waive) > 0, "refused but "+strings.Join(p.Trust.Waive, " "), "refused")
}

func variables(p *profiles.Profile) string {
	e := p.Environment
	out := "all"
	if len(e.Allow) > 0 {
		out = strings.Join(e.Allow, " ")
	}
	if len(e.Deny) > 0 {
		out += fmt.Sprintf(" but %s", list(e.Deny, ""))
	}
	return out
}

func syscalls(p *profiles.Profile) string {
	out := []string{"built-in list"}
	for _, k := range p.Syscalls.Packs {
		out = append(out, "+"+string(k))
	}
	for _, n := range p.Syscalls.Allow {
		out = append(out, "+"+n)
	}
	for _, n := range p.Syscalls.Deny {
		out = append(out, "-"+n)
	}
	return strings.Join(out, " ")
}

func host(p *profiles.Profile) string {
	h := p.Host
	var out []string
	for _, n := range h.Namespaces {
		out = append(out, string(n)+" namespace")
	}
	for _, d := range h.Devices {
		out = append(out, d.String())
	}
	return list(slices.Concat(out, h.Mounts, h.Sysctls), "-")
}

func limits(p *profiles.Profile) string {
	l := p.Limits
	var out []string
	add := func(set bool, text string) {
		if set {
			out = append(out, text)
		}
	}
	add(l.MemoryBytes > 0, size(l.MemoryBytes)+" memory")
	add(l.PIDs > 0, strconv.FormatInt(l.PIDs, 10)+" processes")
	add(l.CPUs > 0, strconv.FormatFloat(l.CPUs, 'g', -1, 64)+" CPUs")
	add(l.WallClock > 0, l.WallClock.String())
	add(l.CPUTime > 0, l.CPUTime.String()+" CPU time")
	add(l.OutputBytes > 0, size(l.OutputBytes)+" output")
	add(l.OpenFiles > 0, strconv.FormatInt(l.OpenFiles, 10)+" open files")
	add(l.EgressBytes > 0, size(l.EgressBytes)+" sent")
	add(l.IngressBytes > 0, size(l.IngressBytes)+" received")
	add(l.EgressConnections > 0, strconv.FormatInt(l.EgressConnections, 10)+" connections at a time")
	add(l.EgressRequests > 0, strconv.FormatInt(l.EgressRequests, 10)+" requests to a name")
	add(l.LayerBytes > 0, size(l.LayerBytes)+" written")
	add(l.LayerInodes > 0, strconv.FormatInt(l.LayerInodes, 10)+" files written")
	return list(out, "the engine's")
}

func execs(p *profiles.Profile) string {
	var out []string
	if p.Exec.Transaction != "" {
		out = append(out, "a transaction, kept "+pick(p.Exec.Commit == "", "always", p.Exec.Commit))
	}
	if p.Exec.WallClock > 0 {
		out = append(out, "at most "+p.Exec.WallClock.String())
	}
	return list(out, "-")
}

func survives(p *profiles.Profile) string {
	switch p.Filesystem.Workspace.Mode {
	case profiles.WorkspaceOverlay:
		return "layers"
	case profiles.WorkspaceReadonly:
		return "nothing"
	case "", profiles.WorkspaceDirect:
	}
	return "what is written to mounts"
}

func authorises(p *profiles.Profile) string {
	if p.Filesystem.Workspace.Mode == profiles.WorkspaceOverlay {
		return "whoever promotes a layer"
	}
	return pick(p.Filesystem.Workspace.Mode == profiles.WorkspaceReadonly, "-", "nobody is asked")
}

func trust(p *profiles.Profile) string {
	t := p.Trust
	var out []string
	for _, c := range []struct {
		on   bool
		name string
	}{{t.UntrustedInput, "untrusted input"}, {t.Secrets, "secrets"}, {t.ExternalWrite, "sends anywhere"}} {
		if c.on {
			out = append(out, c.name)
		}
	}
	if len(out) == 3 {
		return "all three: noted, not refused"
	}
	return strings.Join(out, " + ")
}

// few is how many entries of a list are shown.
const few = 6

// list joins a few and counts the rest.
func list(in []string, empty string) string {
	switch {
	case len(in) == 0:
		return empty
	case len(in) > few:
		return strings.Join(in[:few-1], " ") + fmt.Sprintf(" and %d more", len(in)-few+1)
	}
	return strings.Join(in, " ")
}

func trimAll(in []string, prefix string) []string {
	out := make([]string, len(in))
	for i := range in {
		out[i] = strings.TrimPrefix(in[i], prefix)
	}
	return out
}

func pick(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}

// size spells a size as a profile file does.
func size(n int64) string {
	for _, u := range []struct {
		shift int
		name  string
	}{{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<u.shift && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
