package rdt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ErrUnsupported says that this machine has no resctrl file system.
var ErrUnsupported = errors.New("no resctrl file system is mounted on " + Dir + " (an Intel processor with RDT, and mount -t resctrl)")

// Dir is where the kernel's documentation has resctrl mounted.
const Dir = "/sys/fs/resctrl"

// Config is what a container asks for, checked.
type Config struct {
	// Name is the class's directory below resctrl's, "" for its top; ID the container's.
	Name, ID string
	// Own says that the class is the container's alone.
	Own bool
	// Schemata are lines for the file of that name; none leaves the class as it is.
	Schemata []string
	// Monitor asks for a group of the container's own that counts what it uses.
	Monitor bool
}

// Group is a class of service that a container is in.
type Group struct {
	// Path is the directory of the class; Made says that it is to be removed at the end.
	Path string `json:"path"`
	Made bool   `json:"made,omitempty"`
	// Monitor is the directory of the container's monitoring group, "" for none.
	Monitor string `json:"monitor,omitempty"`
}

// Plan checks linux.intelRdt of a container; nil is none. Errors name the field. It makes no system call.
func Plan(in *specs.LinuxIntelRdt, id string) (*Config, error) {
	if in == nil {
		return nil, nil //nolint:nilnil // nothing asked for
	}
	c := &Config{Name: in.ClosID, ID: id, Own: in.ClosID == "", Monitor: in.EnableMonitoring, Schemata: slices.Clone(in.Schemata)}
	switch {
	case c.Own:
		c.Name = id
	case c.Name == "/":
		c.Name = ""
	case strings.ContainsAny(c.Name, "/\x00\n") || slices.Contains([]string{".", "..", "info", "mon_data", "mon_groups"}, c.Name):
		return nil, fmt.Errorf("linux.intelRdt.closID: %q is not a class's name", in.ClosID)
	}
	for i, line := range c.Schemata {
		if strings.ContainsAny(line, "\x00\n") || !strings.Contains(line, ":") {
			return nil, fmt.Errorf("linux.intelRdt.schemata[%d]: %q is not a line of a schemata file", i, line)
		}
	}
	for _, old := range []struct{ field, text, resource string }{
		{"l3CacheSchema", in.L3CacheSchema, "L3"}, {"memBwSchema", in.MemBwSchema, "MB"},
	} {
		for line := range strings.Lines(old.text) {
			line = strings.TrimSpace(line)
			if line == "" || len(in.Schemata) > 0 { // schemata takes the place of both
				continue
			}
			if name, _, found := strings.Cut(line, ":"); !found || !strings.HasPrefix(name, old.resource) || strings.ContainsRune(line, 0) {
				return nil, fmt.Errorf("linux.intelRdt.%s: %q is not a schema of %s", old.field, line, old.resource)
			}
			c.Schemata = append(c.Schemata, line)
		}
	}
	return c, nil
}

// Find returns the directory of resctrl, or ErrUnsupported.
func Find() (string, error) {
	var fs unix.Statfs_t
	if unix.Statfs(Dir, &fs) != nil || fs.Type != unix.RDTGROUP_SUPER_MAGIC {
		return "", ErrUnsupported
	}
	return Dir, nil
}

// Group says where the container's class will be, before anything is made.
func (c *Config) Group(root string) *Group {
	g := &Group{Path: filepath.Join(root, c.Name), Made: c.Own}
	if c.Monitor {
		g.Monitor = filepath.Join(g.Path, "mon_groups", c.ID)
	}
	return g
}

// Apply makes the class as the container asks for it, or makes sure that it is so, and makes its monitoring group. What it
// has made is the Group's to remove, also if it returns an error.
func (c *Config) Apply(g *Group) error {
	current, err := os.ReadFile(filepath.Join(g.Path, "schemata"))
	exists := err == nil
	switch {
	case exists && c.Own:
		g.Made, g.Monitor = false, ""
		return fmt.Errorf("linux.intelRdt: the class %s exists already: %w", g.Path, unix.EEXIST)
	case exists:
		if missing := missing(c.Schemata, string(current)); missing != "" {
			return fmt.Errorf("linux.intelRdt: the class %q exists and does not have %q: %w", c.Name, missing, unix.EINVAL)
		}
	case !c.Own && len(c.Schemata) == 0:
		return fmt.Errorf("linux.intelRdt.closID: there is no class %q, and nothing says what it would hold: %w", c.Name, unix.ENOENT)
	default:
		if err := os.Mkdir(g.Path, 0o755); err != nil { //nolint:forbidigo // of the kernel's file system, not of a root file system
			return fmt.Errorf("linux.intelRdt: make class: %w", explain(err))
		}
		for _, line := range c.Schemata {
			if err := write(filepath.Join(g.Path, "schemata"), line+"\n"); err != nil {
				return fmt.Errorf("linux.intelRdt: set %q: %w", line, err)
			}
		}
	}
	if g.Monitor != "" {
		if err := os.Mkdir(g.Monitor, 0o755); err != nil { //nolint:forbidigo // likewise
			return fmt.Errorf("linux.intelRdt.enableMonitoring: %w", explain(err))
		}
	}
	return nil
}

// Add moves a process into the class; its children follow it.
func (g *Group) Add(pid int) error {
	for _, dir := range []string{g.Path, g.Monitor} {
		if dir == "" {
			continue
		}
		if err := write(filepath.Join(dir, "tasks"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("linux.intelRdt: move process %d: %w", pid, err)
		}
	}
	return nil
}

// Remove removes what was made for the container. It is no error if nothing is there.
func (g *Group) Remove() error {
	dirs := []string{g.Monitor}
	if g.Made {
		dirs = append(dirs, g.Path)
	}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	return nil
}

// missing returns the first line that a schemata file does not have, "" if it has all.
func missing(want []string, file string) string {
	have := map[string]bool{}
	for line := range strings.Lines(file) {
		have[strings.ReplaceAll(strings.TrimSpace(line), " ", "")] = true
	}
	for _, line := range want {
		if !have[strings.ReplaceAll(strings.TrimSpace(line), " ", "")] {
			return line
		}
	}
	return ""
}

// write writes to a file of the kernel's, in one call.
func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// explain adds what an errno of mkdir(2) means in resctrl.
func explain(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("the processor has no more classes or monitors: %w", err)
	}
	return err
}
