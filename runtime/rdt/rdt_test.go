package rdt

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		in   specs.LinuxIntelRdt
		want *Config
		err  string
	}{
		"own": {
			specs.LinuxIntelRdt{L3CacheSchema: "L3:0=7f0;1=1f\n", MemBwSchema: "MB:0=20;1=70"},
			&Config{Name: "c", ID: "c", Own: true, Schemata: []string{"L3:0=7f0;1=1f", "MB:0=20;1=70"}}, "",
		},
		"named":        {specs.LinuxIntelRdt{ClosID: "gold", EnableMonitoring: true}, &Config{Name: "gold", ID: "c", Monitor: true}, ""},
		"the top":      {specs.LinuxIntelRdt{ClosID: "/"}, &Config{ID: "c"}, ""},
		"schemata win": {specs.LinuxIntelRdt{Schemata: []string{"L2:0=f"}, L3CacheSchema: "L3:0=1"}, &Config{Name: "c", ID: "c", Own: true, Schemata: []string{"L2:0=f"}}, ""},
		"climbs":       {specs.LinuxIntelRdt{ClosID: ".."}, nil, "linux.intelRdt.closID"},
		"a path":       {specs.LinuxIntelRdt{ClosID: "a/b"}, nil, "linux.intelRdt.closID"},
		"the kernel's": {specs.LinuxIntelRdt{ClosID: "info"}, nil, "linux.intelRdt.closID"},
		"two lines":    {specs.LinuxIntelRdt{Schemata: []string{"L3:0=1\nMB:0=1"}}, nil, "linux.intelRdt.schemata[0]"},
		"no schema":    {specs.LinuxIntelRdt{L3CacheSchema: "MB:0=1"}, nil, "linux.intelRdt.l3CacheSchema"},
	} {
		got, err := Plan(&c.in, "c")
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", name, err, c.err)
			}
			continue
		}
		if err != nil || got.Name != c.want.Name || got.Own != c.want.Own || got.Monitor != c.want.Monitor || !slices.Equal(got.Schemata, c.want.Schemata) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	if c, err := Plan(nil, "c"); c != nil || err != nil {
		t.Errorf("nothing asked for: %v, %v", c, err)
	}
}

// class stands for a class that an administrator has made: plain files, since few machines have the kernel's.
func class(t *testing.T, root, name, schemata string) string {
	t.Helper()
	dir := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Join(dir, "mon_groups"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"schemata": schemata, "tasks": ""} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNamedClass(t *testing.T) {
	root := t.TempDir()
	dir := class(t, root, "gold", "    L3:0=7f0;1=1f\n    MB:0= 20;1= 70\n")
	join := func(in specs.LinuxIntelRdt) (*Group, error) {
		c, err := Plan(&in, "c")
		if err != nil {
			t.Fatal(err)
		}
		g := c.Group(root)
		return g, c.Apply(g)
	}
	g, err := join(specs.LinuxIntelRdt{ClosID: "gold", Schemata: []string{"MB:0=20;1=70"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Add(4711); err != nil {
		t.Error(err)
	}
	if tasks, err := os.ReadFile(filepath.Join(dir, "tasks")); err != nil || string(tasks) != "4711" {
		t.Errorf("tasks %q, %v", tasks, err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("somebody else's class: %v", err)
	}
	if _, err := join(specs.LinuxIntelRdt{ClosID: "gold", L3CacheSchema: "L3:0=1"}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("another schema than the class's: %v", err)
	}
	if _, err := join(specs.LinuxIntelRdt{ClosID: "silver"}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a class that does not exist: %v", err)
	}
}

// A class of the container's own that is there already is somebody else's, and stays.
func TestOwnClass(t *testing.T) {
	root := t.TempDir()
	dir := class(t, root, "c", "")
	c, err := Plan(&specs.LinuxIntelRdt{EnableMonitoring: true}, "c")
	if err != nil {
		t.Fatal(err)
	}
	g := c.Group(root)
	if err := c.Apply(g); !errors.Is(err, unix.EEXIST) {
		t.Errorf("it exists: %v", err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("removed: %v", err)
	}
	empty := &Group{Path: filepath.Join(root, "new"), Made: true}
	if err := os.Mkdir(empty.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := empty.Remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(empty.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not removed: %v", err)
	}
}

func TestFind(t *testing.T) {
	dir, err := Find()
	if err == nil && dir == Dir {
		return
	}
	if !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}
