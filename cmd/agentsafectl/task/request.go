package task

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// Networks that a Request may name.
const (
	NetworkNone = "none" // a network namespace with loopback only
	NetworkHost = "host" // the host's: the profile must grant it
)

// Request is what the caller asked for.
type Request struct {
	ID        string
	Command   []string // argv; Command[0] is looked up in PATH
	Env       []string // NAME=VALUE, in the order given; the last of a name wins
	Workspace string   // absolute path without symbolic links; empty for none
	Source    string   // what is bound there, if not Workspace itself: a handle, see OpenWorkspace
	Network   string   // NetworkNone or NetworkHost
	// Common is a git directory outside of the workspace that a worktree in it belongs to; "" for none.
	Common         string
	CommonReadOnly bool
	// Annotations go into the container's spec: they tell who it is for, and tighten its policy.
	Annotations map[string]string
	Terminal    bool
	Term        string // TERM of the caller's terminal
	Rows        uint   // of the terminal; 0 if unknown
	Columns     uint

	MemoryMaxBytes int64   // 0 for no limit
	PIDsMax        int64   // 0 for no limit
	CPUs           float64 // 0 for no limit
}

// User is who the task runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
	Name     string   // empty if nobody gave the id a name
	Home     string   // absolute
}

// systemDirs are no workspaces, neither they themselves nor a parent of one.
func systemDirs() []string {
	return []string{
		"/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt", "/opt",
		"/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local",
		"/usr/sbin", "/usr/share", "/var", "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/spool", "/var/tmp",
	}
}

// closedTrees have no workspace anywhere beneath them.
func closedTrees() []string {
	return []string{"/boot", "/dev", "/etc", "/proc", "/sys", "/var/lib/agentsafe", "/run/agentsafe", "/run/agentsafectl"}
}

// checkWorkspace refuses a folder that would give away more than a project. home
// is the home directory of who runs the task; further homes come from others.
func checkWorkspace(dir string, homes []string) error {
	if !path.IsAbs(dir) || path.Clean(dir) != dir {
		return fmt.Errorf("workspace %q: not an absolute, clean path", dir)
	}
	for _, sys := range append(systemDirs(), "/") {
		if within(dir, sys) {
			return fmt.Errorf("workspace %q: is, or holds, the system directory %s; name a project folder with --workspace", dir, sys)
		}
	}
	for _, tree := range closedTrees() {
		if within(tree, dir) {
			return fmt.Errorf("workspace %q: %s belongs to the system; name a project folder with --workspace", dir, tree)
		}
	}
	for _, home := range homes {
		if home != "/" && home != "" && within(dir, home) {
			return fmt.Errorf("workspace %q: is, or holds, the home directory %s with its keys and tokens; name a project folder with --workspace", dir, home)
		}
	}
	return nil
}

// within says whether p is dir or beneath it. Both are clean.
func within(dir, p string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// mergeEnv lets later settings replace earlier ones of the same name and keeps
// the order of first appearance.
func mergeEnv(lists ...[]string) ([]string, error) {
	var out []string
	place := map[string]int{}
	for _, list := range lists {
		for _, kv := range list {
			name, _, ok := strings.Cut(kv, "=")
			if !ok || name == "" || strings.ContainsRune(kv, 0) {
				return nil, fmt.Errorf("environment %q: not NAME=VALUE", kv)
			}
			if at, seen := place[name]; seen {
				out[at] = kv
				continue
			}
			place[name] = len(out)
			out = append(out, kv)
		}
	}
	return out, nil
}

func (r *Request) check() error {
	if len(r.Command) == 0 || r.Command[0] == "" {
		return errors.New("no command given")
	}
	if r.Network != NetworkNone && r.Network != NetworkHost {
		return fmt.Errorf("network %q: %s or %s", r.Network, NetworkNone, NetworkHost)
	}
	if r.MemoryMaxBytes < 0 || r.PIDsMax < 0 || r.CPUs < 0 {
		return errors.New("limits: negative")
	}
	return nil
}

// termEnv passes TERM on if it is the name of a terminal type and no more.
func (r *Request) termEnv() []string {
	if !r.Terminal {
		return nil
	}
	ok := r.Term != "" && len(r.Term) <= 64
	for _, c := range r.Term {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-+._", c))
	}
	if !ok {
		return []string{"TERM=xterm"}
	}
	return []string{"TERM=" + r.Term}
}
