package record

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/agentsafe/agentsafe/profiles"
)

// YAML writes the profile: the tightest built-in one that it can extend, and what has to differ from it.
func YAML(o *Observations, name string) string {
	g := &generated{o: o, name: name, reads: generalise(o, o.Reads, false), writes: generalise(o, o.Writes, true), executes: generalise(o, o.Executes, false)}
	g.choose()
	var b strings.Builder
	b.WriteString("# Made by agentsafectl profile generate from:\n")
	for _, c := range o.Commands {
		fmt.Fprintf(&b, "#   %s\n", oneLine(c))
	}
	fmt.Fprintf(&b, "# Read it before you trust it: it grants what the run did, whether that was right or not.\n")
	if o.Dropped > 0 {
		fmt.Fprintf(&b, "# %d files or names more did not fit into the recording.\n", o.Dropped)
	}
	fmt.Fprintf(&b, "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: %s}\nextends: %s\n", name, g.parent)
	g.filesystem(&b)
	g.syscalls(&b)
	g.network(&b)
	g.limits(&b)
	return b.String()
}

type generated struct {
	o                       *Observations
	name, parent            string
	reads, writes, executes map[string][]string
	packs                   []string
	refused                 []string // calls that no pack brings
}

// choose takes the tightest parent. Every one that is considered holds no secrets.
func (g *generated) choose() {
	for _, c := range slices.Sorted(maps.Keys(g.o.Calls)) {
		call, _, _ := strings.Cut(c, " ")
		switch k := profiles.PackOf(call); {
		case c == namespaceClone || call == "unshare" || call == "setns":
			g.packs = append(g.packs, string(profiles.PackBrowser))
		case k != "" && k != profiles.PackContainers:
			g.packs = append(g.packs, string(k))
		default:
			g.refused = append(g.refused, c)
		}
	}
	slices.Sort(g.packs)
	g.packs = slices.Compact(g.packs)
	g.parent = "lint"
	if len(g.o.Names) > 0 {
		g.parent = "test"
	}
}

// generalise turns files into the directories that people grant, with the files that each stands for.
func generalise(o *Observations, files map[string]int, made bool) map[string][]string {
	out := map[string][]string{}
	for _, f := range slices.Sorted(maps.Keys(files)) {
		if dir := place(o, f, made); dir != "" {
			out[dir] = append(out[dir], f)
		}
	}
	for dir := range out {
		for other := range out {
			if dir != other && strings.HasPrefix(dir+"/", strings.TrimSuffix(other, "/")+"/") {
				out[other] = append(out[other], out[dir]...)
				delete(out, dir)
				break
			}
		}
	}
	return out
}

// place is the directory to grant for a file, which may have to be made; "" for what every profile grants.
func place(o *Observations, f string, made bool) string {
	below := func(dir string) bool { return dir != "" && dir != "/" && (f == dir || strings.HasPrefix(f, dir+"/")) }
	switch first, rest, _ := strings.Cut(strings.TrimPrefix(f, "/"), "/"); {
	case below("/proc"), below("/dev"), f == "/", f == o.Home:
		return "" // a list of the directory alone: to grant it would grant all below it
	case below(o.Workspace):
		return "$WORKSPACE"
	case below(o.Home):
		// A tool's own folder below the home directory, or a tool's below .cache and the like.
		rest := strings.Split(strings.TrimPrefix(strings.TrimPrefix(f, o.Home), "/"), "/")
		depth := 1
		if len(rest) > 2 && slices.Contains([]string{".cache", ".config", ".local"}, rest[0]) {
			depth = 2
		}
		if len(rest) <= depth && made {
			return "$HOME"
		}
		depth = min(depth, len(rest))
		return "$HOME/" + strings.Join(rest[:depth], "/")
	case slices.Contains([]string{"usr", "bin", "lib", "lib32", "lib64", "libx32", "sbin", "etc", "tmp"}, first):
		return "/" + first
	case first == "opt" || first == "var" || first == "srv" || first == "home" || first == "mnt":
		second, _, deeper := strings.Cut(rest, "/")
		if deeper {
			return "/" + first + "/" + second
		}
		return "/" + first
	case rest == "":
		return "/" // a directory of the root itself
	}
	return path.Dir(f)
}

func (g *generated) filesystem(b *strings.Builder) {
	b.WriteString("filesystem:\n")
	writesWorkspace := false
	for _, set := range []struct {
		key   string
		paths map[string][]string
	}{{"read", g.reads}, {"execute", g.executes}, {"write", g.writes}} {
		if len(set.paths) == 0 {
			fmt.Fprintf(b, "  %s: []\n", set.key)
			continue
		}
		fmt.Fprintf(b, "  %s:\n", set.key)
		for _, dir := range slices.Sorted(maps.Keys(set.paths)) {
			files := set.paths[dir]
			fmt.Fprintf(b, "    - %s  # %s\n", quote(dir), example(files))
			writesWorkspace = writesWorkspace || set.key == "write" && (dir == "$WORKSPACE" || dir == "/")
		}
	}
	switch {
	case writesWorkspace && g.parent == "lint":
		b.WriteString("  workspace: {mode: direct}  # it writes there; overlay keeps the writes until they are promoted\n")
	case !writesWorkspace && g.parent != "lint":
		b.WriteString("  workspace: {mode: readonly}\n")
	}
}

func example(files []string) string {
	text := oneLine(files[0])
	if len(files) > 1 {
		text += fmt.Sprintf(" and %d more", len(files)-1)
	}
	return text
}

// oneLine keeps what a run chose within its comment.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if !strconv.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

// quote writes a scalar: plain where that can't be misread, else as YAML's double-quoted form has it, of which Go's is a
// part.
func quote(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-$") == "" {
		return s
	}
	return strconv.Quote(s)
}

func (g *generated) syscalls(b *strings.Builder) {
	if len(g.packs) > 0 {
		fmt.Fprintf(b, "syscalls: {packs: [%s]}\n", strings.Join(g.packs, ", "))
	}
	for _, c := range g.refused {
		fmt.Fprintf(b, "# It called %s (%d times), which stays refused: most programs do without. syscalls: {allow: [...]} would grant it.\n", oneLine(c), g.o.Calls[c])
	}
}

func (g *generated) network(b *strings.Builder) {
	if g.parent == "lint" {
		for _, a := range slices.Sorted(maps.Keys(g.o.Addresses)) {
			fmt.Fprintf(b, "# It connected to %s without asking for a name, which stays refused.\n", a)
		}
		return
	}
	ports := map[string]bool{}
	for a := range g.o.Addresses {
		ports[a[strings.LastIndexByte(a, ':')+1:]] = true
	}
	if len(ports) == 0 {
		ports["443"] = true
	}
	b.WriteString("network:\n  mode: gateway\n  ruleSets: []\n")
	list := strings.Join(slices.Sorted(maps.Keys(ports)), ",")
	b.WriteString("  allow:  # every name with every port that was seen: narrow it\n")
	for _, n := range slices.Sorted(maps.Keys(g.o.Names)) {
		fmt.Fprintf(b, "    - %s\n", strconv.Quote(n+":"+list))
	}
}

// limits leave room: twice the processes that were seen.
func (g *generated) limits(b *strings.Builder) {
	const fewest, roundTo, mib = 32, 32, 1 << 20
	pids := (max(2*g.o.Processes, fewest) + roundTo - 1) / roundTo * roundTo
	fmt.Fprintf(b, "limits:\n  pids: %d  # seen: %d at a time\n  # memory: seen: %d MiB in the largest process\n", pids, g.o.Processes, (g.o.MaxRSSBytes+mib-1)/mib)
}
