package ps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// place is where an engine has the runtime keep its states.
type place struct{ engine, glob string }

// places are those of the engines' defaults. The first is agentsafe's own default, which Podman uses, too.
func places() []place {
	return []place{
		{"", "/run/agentsafe"},
		{"docker", "/run/docker/runtime-*/moby"},      // Docker 20.10: one directory for each runtime
		{"docker", "/run/docker/containerd/*/moby"},   // its own containerd
		{"docker", "/run/agentsafe-shim-state/moby"},  // Docker 23 and later, by our shim
		{"containerd", "/run/agentsafe-shim-state/*"}, // our shim, by namespace
		{"containerd", "/run/containerd/runc/*"},      // runc's shim
	}
}

// Entry is one container.
type Entry struct {
	ID      string `json:"id"`
	Engine  string `json:"engine,omitempty"`
	Root    string `json:"root"`
	Status  string `json:"status"`
	PID     int    `json:"pid"`
	Profile string `json:"profile"`
	// Enforcement is "warn" where the profile is not in force.
	Enforcement string `json:"enforcement,omitempty"`
	PolicyHash  string `json:"policyHash"`
	// Limits are the profile's, nil if it has none.
	Limits  *profiles.Limits `json:"limits,omitempty"`
	Network string           `json:"network"`
	// Denials is how many things were refused to the task so far, nil if nobody writes that down.
	Denials    *int      `json:"denials,omitempty"`
	Supervised bool      `json:"supervised"`
	Bundle     string    `json:"bundle"`
	Created    time.Time `json:"created"`
}

// Find lists the containers below the usual places, and below more, which are state directories.
func Find(more []string) ([]Entry, error) {
	var out []Entry
	seen := map[string]bool{}
	all := places()
	for _, root := range more {
		all = append(all, place{"", root})
	}
	for _, p := range all {
		roots, err := filepath.Glob(p.glob)
		if err != nil {
			return nil, fmt.Errorf("list state directories %q: %w", p.glob, err)
		}
		for _, root := range roots {
			resolved, err := filepath.EvalSymlinks(root)
			if err != nil || seen[resolved] {
				continue
			}
			seen[resolved] = true
			entries, err := findIn(p.engine, resolved)
			if errors.Is(err, fs.ErrPermission) && !slices.Contains(more, p.glob) {
				continue // root's, and an ordinary user asks
			}
			if err != nil {
				return nil, err
			}
			out = append(out, entries...)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return a.Created.Compare(b.Created) })
	return out, nil
}

func findIn(engine, root string) ([]Entry, error) {
	dir, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("read state directory: %w", err)
	}
	var out []Entry
	var rt *container.Runtime
	for _, d := range dir {
		if !isOurs(filepath.Join(root, d.Name(), "state.json")) {
			continue
		}
		if rt == nil {
			if rt, err = container.Open(container.Options{Root: root}); err != nil {
				return nil, err
			}
			defer rt.Close()
		}
		if e, ok := describe(rt, d.Name()); ok {
			e.Engine, e.Root = engine, root
			out = append(out, e)
		}
	}
	return out, nil
}

// isOurs tells agentsafe's states from those that another runtime keeps in the same place.
func isOurs(file string) bool {
	data, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	var s struct {
		Version    int    `json:"version"`
		PolicyHash string `json:"policyHash"`
	}
	return json.Unmarshal(data, &s) == nil && s.Version > 0 && s.PolicyHash != ""
}

// describe reads a container; false if it is gone by now.
func describe(rt *container.Runtime, id string) (Entry, bool) {
	c, err := rt.Load(id)
	if err != nil {
		return Entry{}, false
	}
	defer c.Close()
	status, err := c.Status()
	if err != nil {
		status = "unknown"
	}
	s := c.State()
	e := Entry{
		ID: id, Status: string(status), PID: s.InitPID, Profile: s.Profile, Enforcement: string(s.Enforcement), PolicyHash: s.PolicyHash,
		Network: string(s.Network), Supervised: s.SupervisorPID != 0, Bundle: s.Bundle, Created: s.Created,
	}
	// Written last of all: a container that is just being created has none yet.
	if d, err := c.Detail(); err == nil && d.Policy != nil && d.Policy.Profile.Limits != (profiles.Limits{}) {
		e.Limits = &d.Policy.Profile.Limits
	}
	if f, err := c.OpenDenials(); err == nil {
		if n, err := denials.Distinct(f); err == nil {
			e.Denials = &n
		}
		f.Close()
	}
	return e, true
}

// profile is the name for people, with what is to be known of it.
func (e *Entry) profile() string {
	if e.Enforcement != "" {
		return e.Profile + " (" + e.Enforcement + " only)"
	}
	return e.Profile
}

// refused is the count of denials for people.
func (e *Entry) refused() string {
	if e.Denials == nil {
		return "-"
	}
	return strconv.Itoa(*e.Denials)
}

// Write prints entries for people.
func Write(w io.Writer, entries []Entry, now time.Time) error {
	const padding = 2
	tw := tabwriter.NewWriter(w, 0, 0, padding, ' ', 0)
	fmt.Fprintln(tw, "CONTAINER\tENGINE\tPROFILE\tNETWORK\tLIMITS\tDENIALS\tSTATUS\tPID\tAGE\tPOLICY")
	for _, e := range entries {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", shorten(e.ID, 20), dash(e.Engine), e.profile(), dash(e.Network), limits(e.Limits), e.refused(), e.Status,
			e.PID, now.Sub(e.Created).Round(time.Second), shorten(e.PolicyHash, 12))
	}
	return tw.Flush()
}

// limits lists what a profile limits, shortly; what else it has is in the JSON.
func limits(l *profiles.Limits) string {
	if l == nil {
		return "-"
	}
	var out []string
	add := func(set bool, format string, value any) {
		if set {
			out = append(out, fmt.Sprintf(format, value))
		}
	}
	const mebi = 1 << 20
	add(l.WallClock > 0, "%v", l.WallClock)
	add(l.CPUTime > 0, "cpu %v", l.CPUTime)
	add(l.MemoryBytes > 0, "%d MiB", l.MemoryBytes/mebi)
	add(l.PIDs > 0, "%d pids", l.PIDs)
	add(l.CPUs > 0, "%g cpus", l.CPUs)
	if len(out) == 0 {
		return "others"
	}
	return strings.Join(out, ", ")
}

func shorten(s string, n int) string { return s[:min(n, len(s))] }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
