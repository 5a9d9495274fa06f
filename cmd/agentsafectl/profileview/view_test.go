package profileview

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/profiles"
)

func builtin(t *testing.T, name string) *profiles.Profile {
	t.Helper()
	p, err := profiles.Builtin(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func cell(t *testing.T, table *Table, row, column string) string {
	t.Helper()
	at := slices.Index(table.Heading, column)
	for _, r := range table.Rows {
		if r[0] == row && at >= 0 {
			return r[at]
		}
	}
	t.Fatalf("no %s of %s", row, column)
	return ""
}

func TestMatrix(t *testing.T) {
	var all []*profiles.Profile
	for _, name := range profiles.BuiltinNames() {
		all = append(all, builtin(t, name))
	}
	m := Matrix(all)
	for _, c := range [][3]string{
		{"network", "agent", "public addresses"},
		{"network", "offline", "none"},
		{"network", "test", "packages only"},
		{"network", "research", "*:443 *:80"},
		{"workspace", "lint", "read-only"},
		{"workspace", "build", "writes go to a layer"},
		{"workspace", "none", "as the engine says"},
		{"secrets", "agent", "noted"},
		{"secrets", "build", "refused"},
		{"secrets", "publish", "allowed"},
		{"packages", "lint", "none"},
		{"packages", "test", "crates go gradle maven npm and 4 more"},
		{"system calls", "codex", "built-in list +browser"},
		{"who authorises", "build", "whoever promotes a layer"},
		{"Rule of Two", "agent", "all three: noted, not refused"},
	} {
		if got := cell(t, m, c[0], c[1]); got != c[2] {
			t.Errorf("%s of %s: %q, want %q", c[0], c[1], got, c[2])
		}
	}
	for _, row := range m.Rows {
		if len(row) != len(m.Heading) || slices.Contains(row, "") {
			t.Errorf("a cell is missing: %q", row)
		}
	}
	var text, markdown, object bytes.Buffer
	for _, err := range []error{m.WriteText(&text), m.WriteMarkdown(&markdown), m.WriteJSON(&object)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var rows []map[string]string
	if err := json.Unmarshal(object.Bytes(), &rows); err != nil || rows[0]["what"] != "reads files" || rows[0]["agent"] != "/" {
		t.Errorf("%v, %v", rows, err)
	}
	if lines := strings.Split(markdown.String(), "\n"); !strings.HasPrefix(lines[1], "| --- |") || len(lines) != len(m.Rows)+3 {
		t.Error(markdown.String())
	}
}

func TestDiff(t *testing.T) {
	table, err := Diff(builtin(t, "lint"), builtin(t, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	if got := cell(t, table, "filesystem.write", "agent"); got != "/" {
		t.Error(got)
	}
	for _, row := range table.Rows {
		if row[1] != "agent" {
			t.Errorf("lint grants more than agent: %q", row)
		}
	}
	a, b := builtin(t, "agent"), builtin(t, "agent")
	a.Name, b.Name = "a", "b"
	a.Limits.PIDs, b.Limits.MemoryBytes = 5, 1<<20
	if table, err = Diff(a, b); err != nil || len(table.Rows) != 2 {
		t.Fatalf("%v, %v", table, err)
	}
	if got := cell(t, table, "limits.memory", "b"); got != "1MiB" {
		t.Error(got)
	}
	if cell(t, table, "limits.memory", "grants more") != "a" || cell(t, table, "limits.pids", "grants more") != "b" {
		t.Error(table)
	}
}

// Values are spelt as a profile file spells them, and a long list does not hide what differs.
func TestDiff_Values(t *testing.T) {
	a, b := builtin(t, "build"), builtin(t, "build")
	a.Name, b.Name = "a", "b"
	a.Limits.CPUs, b.Limits.CPUs = 0.5, 2.5
	a.Limits.WallClock, b.Limits.WallClock = 90*time.Second, time.Hour
	a.Network.ConnectPorts, a.Network.ListenPorts = []profiles.PortRange{{First: 80, Last: 90}}, []profiles.PortRange{}
	a.Environment.Deny = append(slices.Clone(b.Environment.Deny), "MINE")
	a.Network.RuleSets = a.Network.RuleSets[1:]
	a.Filesystem.Workspace.Mode = profiles.WorkspaceReadonly
	table, err := Diff(a, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][3]string{
		{"limits.cpus", "0.5", "2.5"},
		{"limits.wallClock", "1m30s", "1h0m0s"},
		{"network.connectPorts", "80-90", "all"},
		{"network.listenPorts", "none", "all"},
		{"environment.deny", "MINE (and 26 in common)", "(and 26 in common)"},
		{"network.allow", "(and 11 in common)", "crates (and 11 in common)"},
		{"filesystem.workspace.mode", "readonly", "overlay"},
	} {
		if got := [2]string{cell(t, table, c[0], "a"), cell(t, table, c[0], "b")}; got != [2]string{c[1], c[2]} {
			t.Errorf("%s: %q, want %q", c[0], got, c[1:])
		}
	}
	if len(table.Rows) != 7 {
		t.Errorf("%q", table.Rows)
	}
}

func TestLint(t *testing.T) {
	p := builtin(t, "lint")
	p.Filesystem = profiles.Filesystem{Read: []string{"/usr", "/usr/lib"}, Execute: []string{"/opt"}, Write: []string{"/tmp"}}
	p.Syscalls = profiles.Syscalls{Allow: []string{"read", "socket", "bpf", "mbind"}, Deny: []string{"mount", "bpf"}}
	p.Environment = profiles.Environment{Allow: []string{"A"}, Deny: []string{"A"}}
	got := strings.Join(Lint(p, "amd64"), "\n")
	for _, want := range []string{
		"filesystem.read: /usr/lib is covered by /usr", "filesystem.execute: /opt can't be read", "syscalls.allow: read is allowed without it",
		"syscalls.allow: socket lifts the rules on its arguments", "syscalls: bpf is in allow and in deny", "syscalls.deny: mount is refused without it",
		"environment: A is in allow and in deny",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "mbind") {
		t.Errorf("mbind is a grant of its own:\n%s", got)
	}
	for _, name := range []string{"offline", "test", "research", "publish"} {
		if notes := Lint(builtin(t, name), "amd64"); len(notes) > 0 && name != "research" {
			t.Errorf("%s: %v", name, notes)
		}
	}
}
