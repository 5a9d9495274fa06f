package criu

import (
	"slices"
	"strconv"
	"strings"
)

// Options are what the caller chooses, named as runc's flags.
type Options struct {
	// Program is CRIU; "" is the one of PATH.
	Program string
	// Images is the directory of images; Work that of its logs, "" for the same one.
	Images, Work string
	// LeaveRunning lets the processes go on after the checkpoint.
	LeaveRunning bool
	// TCPEstablished has connections written, too; without, one that is open is an error. TCPSkipInFlight leaves out those
	// that are being opened. ExtUnixSk allows sockets whose other end is outside, FileLocks locks, ShellJob a session that
	// began outside, LinkRemap files that were removed while they are open.
	TCPEstablished, TCPSkipInFlight, ExtUnixSk, FileLocks, ShellJob, LinkRemap bool
	// EmptyNetwork makes an empty network namespace in the place of the one that was written.
	EmptyNetwork bool
	// LSMProfile and LSMMountContext replace those that were written; "" keeps them.
	LSMProfile, LSMMountContext string
}

// External is what both ends of a checkpoint have to name alike, because it does not belong to the container.
type External struct {
	// Binds are mount points of the container whose mounts come from outside, with the source to mount there again.
	Binds []Bind
	// Network is the identifier of a network namespace that was joined; "" for none.
	Network string
	// Streams name the first process's standard streams as /proc/PID/fd does; "" for what is in the container.
	Streams []string
}

// Bind is a mount from outside.
type Bind struct{ Destination, Source string }

// networkKey names a joined network namespace in the images.
const networkKey = "agentsafe-network"

func (o *Options) program() string {
	if o.Program == "" {
		return "criu"
	}
	return o.Program
}

func (o *Options) work() string {
	if o.Work == "" {
		return o.Images
	}
	return o.Work
}

// common are the flags of both operations. verb names the log.
func (o *Options) common(verb string) []string {
	args := []string{
		verb, "--images-dir", o.Images, "--work-dir", o.work(), "--log-file", logFile(verb), "-v3",
		"--evasive-devices", // a device is known by its numbers, wherever its node is
	}
	for _, f := range []struct {
		on   bool
		name string
	}{
		{o.TCPEstablished, "--tcp-established"},
		{o.TCPSkipInFlight, "--skip-in-flight"},
		{o.ExtUnixSk, "--ext-unix-sk"},
		{o.FileLocks, "--file-locks"},
		{o.ShellJob, "--shell-job"},
		{o.LinkRemap, "--link-remap"},
	} {
		if f.on {
			args = append(args, f.name)
		}
	}
	if o.EmptyNetwork {
		args = append(args, "--empty-ns", "net")
	}
	return args
}

func logFile(verb string) string { return verb + ".log" }

// Dump is a container to be written.
type Dump struct {
	Options
	External
	PID  int
	Root string
	// Freezer is the cgroup's directory, by which processes are stopped that are no descendants of the first one: CRIU then
	// refuses what it can't restore, in place of leaving it out. "" if there is none.
	Freezer string
	// Unified says that the cgroups are of the unified hierarchy, see PlanRestore.
	Unified bool
}

// PlanDump returns CRIU's arguments.
func PlanDump(d *Dump) []string {
	args := append(d.common("dump"), "--tree", strconv.Itoa(d.PID), "--root", d.Root)
	if d.LeaveRunning {
		args = append(args, "--leave-running")
	}
	if d.Freezer != "" {
		args = append(args, "--freeze-cgroup", d.Freezer)
	}
	for _, b := range d.Binds {
		args = append(args, "--external", "mnt["+b.Destination+"]:"+b.Destination)
	}
	if d.Network != "" {
		args = append(args, "--external", "net["+d.Network+"]:"+networkKey)
	}
	for _, s := range d.Streams {
		if isFile(s) {
			args = append(args, "--external", s)
		}
	}
	return append(args, cgroupMode(d.Unified))
}

// Restore is a container to be made again.
type Restore struct {
	Options
	External
	// Root is a mount point: the container's root file system.
	Root string
	// PidFile is where CRIU writes the first process's pid, below the directory for its logs.
	PidFile string
	// Unified says that CRIU's process stands in the container's cgroup and, if the container has one, in its cgroup
	// namespace, so that what it makes does. It is not what CRIU would do by itself: it makes the cgroup anew that the
	// images name, and a container of another name would not be in its own. On v1, where a process is in many, it is told by
	// CgroupRoots what each is below.
	Unified     bool
	CgroupRoots map[string]string
}

// firstFD is the number of a process's first descriptor behind its standard streams.
const firstFD = 3

// PlanRestore returns CRIU's arguments. The network namespace, if one is joined, is its descriptor 3; after that come the
// standard streams that are inherited, as many as [External.Inherited] says.
func PlanRestore(r *Restore) []string {
	args := append(r.common("restore"), "--root", r.Root, "--restore-detached", "--restore-sibling", "--pidfile", r.PidFile)
	for _, b := range r.Binds {
		args = append(args, "--external", "mnt["+b.Destination+"]:"+b.Source)
	}
	fd := firstFD
	if r.Network != "" {
		args = append(args, "--inherit-fd", "fd["+strconv.Itoa(fd)+"]:"+networkKey)
		fd++
	}
	for _, i := range r.Inherited() {
		args = append(args, "--inherit-fd", "fd["+strconv.Itoa(fd)+"]:"+inheritKey(r.Streams[i]))
		fd++
	}
	if r.LSMProfile != "" {
		args = append(args, "--lsm-profile", r.LSMProfile)
	}
	if r.LSMMountContext != "" {
		args = append(args, "--lsm-mount-context", r.LSMMountContext)
	}
	if !r.Unified {
		for _, name := range sortedKeys(r.CgroupRoots) {
			args = append(args, "--cgroup-root", name+":"+r.CgroupRoots[name])
		}
	}
	return append(args, cgroupMode(r.Unified))
}

func cgroupMode(unified bool) string {
	if unified {
		return "--manage-cgroups=ignore"
	}
	return "--manage-cgroups=soft"
}

func sortedKeys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Inherited lists the standard streams that come from outside, each name once: two of the same pipe are one.
func (e *External) Inherited() []int {
	var out []int
	for i, s := range e.Streams {
		if s != "" && slices.Index(e.Streams, s) == i {
			out = append(out, i)
		}
	}
	return out
}

// isFile reports whether a stream is named as a file from outside is: file[MOUNT:INODE].
func isFile(stream string) bool {
	in, ok := within(stream, "file[")
	mount, inode, found := strings.Cut(in, ":")
	return ok && found && isNumber(mount) && isNumber(inode)
}

// inheritKey is how the images name a stream: "pipe:[7]" is pipe[7] there.
func inheritKey(stream string) string {
	for _, kind := range []string{"pipe", "socket"} {
		if n, ok := within(stream, kind+":["); ok && isNumber(n) {
			return kind + "[" + n + "]"
		}
	}
	return stream
}

// within returns what stands between before and a bracket at the end.
func within(s, before string) (string, bool) {
	rest, starts := strings.CutPrefix(s, before)
	in, ends := strings.CutSuffix(rest, "]")
	return in, starts && ends
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 16, 64)
	return err == nil
}
