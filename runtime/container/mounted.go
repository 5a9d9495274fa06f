package container

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/profiles"
)

// hostMount is a line of mountinfo: what of a file system is mounted where.
type hostMount struct{ device, root, at, kind string }

// mountTable lists the mounts of this process's namespace, once it is asked.
type mountTable struct {
	text   []byte
	mounts []hostMount
}

// read reads the list. Source: proc_pid_mountinfo(5).
func (t *mountTable) read() (err error) {
	if t.text == nil {
		if t.text, err = os.ReadFile("/proc/self/mountinfo"); err != nil {
			return fmt.Errorf("list the host's mounts: %w", err)
		}
	}
	return nil
}

// along lists what is mounted on a source and, if it is mounted with all below it, in it.
func (t *mountTable) along(src *rootfs.Source, recursive bool) ([]profiles.MountedFacts, error) {
	if !src.IsDir() || src.Path == "/" { // the latter is judged by its name
		return nil, nil
	}
	if err := t.read(); err != nil {
		return nil, err
	}
	// Most directories have no mount in them, and need no parsing.
	if !bytes.Contains(t.text, []byte(" "+escapeMount(src.Path))) {
		return nil, nil
	}
	if t.mounts == nil {
		t.mounts = parseMounts(string(t.text))
	}
	return mountedAlong(t.mounts, src.Path, recursive), nil
}

// parseMounts leaves out what it can't read, which the kernel does not write.
func parseMounts(text string) []hostMount {
	var out []hostMount
	for line := range strings.Lines(text) {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
		const device, root, at, least = 2, 3, 4, 5
		mount, filesystem, found := strings.Cut(line, " - ")
		fields := strings.Split(mount, " ") // names may have whatever else is a space
		kind, _, _ := strings.Cut(filesystem, " ")
		if found && len(fields) > least {
			out = append(out, hostMount{fields[device], unescapeMount(fields[root]), unescapeMount(fields[at]), kind})
		}
	}
	return out
}

// mountedAlong is what of a list of mounts comes along with a directory.
func mountedAlong(all []hostMount, dir string, recursive bool) []profiles.MountedFacts {
	var out []profiles.MountedFacts
	for i := range all {
		m := &all[i]
		if rest, in := below(dir, m.at); !in || rest != "" && !recursive {
			continue
		}
		facts := profiles.MountedFacts{At: m.at, Type: m.kind}
		for j := range all {
			if o := &all[j]; o.device == m.device && o.at != m.at {
				if rest, in := below(o.root, m.root); in {
					facts.Names = append(facts.Names, path.Clean(o.at+rest))
				}
			}
		}
		out = append(out, facts)
	}
	return out
}

// below returns what stands behind dir in a path that is dir or below it.
func below(dir, name string) (rest string, in bool) {
	if dir == "/" {
		return strings.TrimSuffix(name, "/"), true
	}
	rest, in = strings.CutPrefix(name, dir)
	return rest, in && (rest == "" || rest[0] == '/')
}

// mountEscapes are the characters that the kernel writes as numbers. Source: fs/proc_namespace.c.
var mountEscapes = [][2]string{{`\`, `\134`}, {" ", `\040`}, {"\t", `\011`}, {"\n", `\012`}} //nolint:gochecknoglobals // a constant table

func escapeMount(name string) string {
	if !strings.ContainsAny(name, "\\ \t\n") {
		return name
	}
	for _, e := range mountEscapes {
		name = strings.ReplaceAll(name, e[0], e[1])
	}
	return name
}

func unescapeMount(name string) string {
	if !strings.Contains(name, `\`) {
		return name
	}
	for _, e := range mountEscapes[1:] {
		name = strings.ReplaceAll(name, e[1], e[0])
	}
	return strings.ReplaceAll(name, mountEscapes[0][1], mountEscapes[0][0])
}

// rootFacts says what root.path is.
func (cr *creation) rootFacts(mounts *mountTable) (profiles.MountFacts, error) {
	r := cr.root
	out := profiles.MountFacts{Path: r.Path, Mode: r.Mode, Dev: r.Dev, Ino: r.Ino}
	var err error
	if out.Mounted, err = mounts.along(r, true); err != nil {
		return out, err
	}
	// A service listens by the path that it sees, and none sees the inside of the file system that an engine has mounted for
	// this container alone: only a directory needs the look.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(r.Tree.Fd()), &fs); err == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return out, nil
	}
	listening, err := engineListeners(sources{r})
	out.Engine = listening[0]
	return out, err
}
