package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Snapshot is what can be left behind: one line per process, mount, cgroup, network device and state file.
type Snapshot map[string]bool

// Snapshot lists the box's processes (all descendants of the observer but the tests' own), the mounts of this
// namespace, the cgroups that carry the tag, the network devices, and the files below /run.
func (b *Box) Snapshot() (Snapshot, error) {
	s := Snapshot{}
	procs, err := descendants(os.Getppid())
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		if p.pid != os.Getpid() {
			s[fmt.Sprintf("process %d %s", p.pid, p.comm)] = true
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 {
			s["mount "+f[4]] = true
		}
	}
	for _, path := range taggedCgroups(b.Tag) {
		if !parentCgroup(path, b.Tag) {
			s["cgroup "+path] = true
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		s["link "+l.Name] = true
	}
	err = filepath.WalkDir("/run", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !d.IsDir() {
			s["file "+path] = true
		}
		return err
	})
	return s, err
}

// Since returns what s has and before has not, sorted.
func (s Snapshot) Since(before Snapshot) []string {
	var added []string
	for line := range s {
		if !before[line] {
			added = append(added, line)
		}
	}
	slices.Sort(added)
	return added
}

// Leftovers returns what is there now and was not before, once it has stopped shrinking or the wait is over:
// engines tear down after they have answered. Engines' own bridges and lock files do not count.
func (b *Box) Leftovers(before Snapshot) []string { return b.waitForLeftovers(before, 5*time.Second) }

func (b *Box) waitForLeftovers(before Snapshot, wait time.Duration) []string {
	deadline := time.Now().Add(wait)
	for {
		now, err := b.Snapshot()
		if err != nil {
			return []string{"snapshot: " + err.Error()}
		}
		left := slices.DeleteFunc(now.Since(before), enginesOwn)
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// enginesOwn tells what an engine leaves by design, whatever the runtime: see each line.
func enginesOwn(line string) bool {
	kind, name, _ := strings.Cut(line, " ")
	switch kind {
	case "mount": // made by `podman run` for the names of network namespaces; a namespace in it would be another mount
		// The second for --network host; the last is Podman's storage bound to itself, which the process that ends last
		// takes away unless two end at once.
		return name == "/run/netns" || name == "/run/docker-test/netns/default" || strings.HasSuffix(name, "/podman/overlay")
	case "link": // bridges outlive dockerd and podman
		return name == "docker0" || strings.HasPrefix(name, "br-") || strings.HasPrefix(name, "cni-podman") || strings.HasPrefix(name, "podman")
	case "file": // locks, and the daemons' own sockets and configuration; runtimes' state lies beside them
		return name == "/run/xtables.lock" || slices.ContainsFunc([]string{
			"/run/lock/", "/run/docker-test/containerd/", "/run/docker-test/netns/default", "/run/containerd-test/", "/run/containerd-test.sock",
			"/run/podman-test/", "/run/podman-test-tmp/", "/run/containers/", "/run/libpod/",
		}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	return false
}

// parentCgroup tells whether path is one of the cgroups that are made once and that nobody removes: the box's common
// parent, and Podman's for its conmon processes.
func parentCgroup(path, tag string) bool {
	return filepath.Base(path) == tag || filepath.Base(path) == "conmon" && filepath.Base(filepath.Dir(path)) == tag
}

type process struct {
	pid, parent int
	comm        string
	zombie      bool
}

// descendants lists the living processes below root, root not included.
func descendants(root int) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	var found []process
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		for _, p := range children[queue[0]] {
			queue = append(queue, p.pid)
			if !p.zombie {
				found = append(found, p)
			}
		}
	}
	return found, nil
}

// readProcess reads /proc/PID/stat, whose second field is a name in parentheses that may itself hold parentheses.
func readProcess(pid int) (process, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if open < 0 || end < open {
		return process{}, false
	}
	rest := strings.Fields(string(stat[end+1:]))
	if len(rest) < 2 {
		return process{}, false
	}
	parent, err := strconv.Atoi(rest[1])
	return process{pid: pid, parent: parent, comm: string(stat[open+1 : end]), zombie: rest[0] == "Z"}, err == nil
}

// taggedCgroups lists the cgroup directories of every hierarchy whose path holds tag, deepest last.
func taggedCgroups(tag string) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, tag) {
			found = append(found, path)
		}
		return nil // one that vanishes during the walk is no finding
	})
	return found
}

// sweep reports, then ends and removes, what a box left outside its namespaces: our descendants and tagged cgroups.
func sweep(tag string) ([]string, error) {
	left, err := sweepProcesses()
	if err != nil {
		return left, err
	}
	for _, path := range slices.Backward(taggedCgroups(tag)) {
		if !parentCgroup(path, tag) {
			left = append(left, "cgroup "+path)
		}
		if err := os.Remove(path); err != nil {
			left = append(left, "remove: "+err.Error())
		}
	}
	return left, nil
}

// sweepProcesses kills until nothing is left: a process may fork while it is being looked for.
func sweepProcesses() (left []string, err error) {
	for round := 0; ; round++ {
		procs, err := descendants(os.Getpid())
		if err != nil || len(procs) == 0 {
			return left, err
		}
		if round == 100 {
			return left, fmt.Errorf("process %d %s survives SIGKILL", procs[0].pid, procs[0].comm)
		}
		for _, p := range procs {
			if round == 0 {
				left = append(left, fmt.Sprintf("process %d %s", p.pid, p.comm))
			}
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
		for pid := 1; pid > 0 && err == nil; {
			pid, err = unix.Wait4(-1, nil, unix.WNOHANG, nil)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
