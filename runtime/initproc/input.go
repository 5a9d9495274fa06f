package initproc

import (
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// None is a descriptor number that says that there is none.
const None = -1

// Join names a namespace that the child enters with setns(2).
type Join struct {
	FD   int // of the child: a namespace file, or a pidfd
	Flag int // CLONE_NEW* bits; several of them only with a pidfd
}

// Rlimit is one resource limit.
type Rlimit struct {
	Resource  int
	Cur, Max  uint64
	SpecIndex int // in process.rlimits, for errors
}

// CapSets are the five capability sets as bit masks.
type CapSets struct{ Bounding, Effective, Permitted, Inheritable, Ambient uint64 }

// Process is what every process of a container goes through, whether it is the first one or an exec.
type Process struct {
	Args, Env []string
	// Programs are the paths to try for Args[0], in order: one if it has a slash, else one for each entry of PATH.
	Programs        []string
	Cwd             string
	UID, GID        uint32
	Groups          []uint32
	Umask           uint32
	Caps            *CapSets // nil leaves the sets alone
	Rlimits         []Rlimit
	NoNewPrivs      bool
	Terminal        bool
	Rows, Columns   uint16
	OOMScoreAdj     *int
	ApparmorProfile string
	SelinuxLabel    string
	Scheduler       *Scheduler
	IOPriority      *int // as ioprio_set(2) takes it
	Personality     *uint64
	// InitialAffinity is the CPU mask until the process is in its cgroup, Affinity that of the final process, in whole
	// 64-bit words; nil is every CPU that the cgroup allows.
	InitialAffinity, Affinity []byte
	MemoryPolicy              *MemoryPolicy
	// Seccomp are the filters in the order in which they are installed, as arrays of struct sock_filter.
	Seccomp      [][]byte
	SeccompFlags uint64
	// ListenerFD is a connected socket that gets the notification descriptor of one of the filters, the ListenerFilter-th,
	// or None. ListenerFlags are that filter's besides SeccompFlags. What is sent with the descriptor are ListenerBytes
	// that the host tells (Tell).
	ListenerFD     int
	ListenerFilter int
	ListenerFlags  uint64
	ListenerBytes  int
	Landlock       *Landlock
	PreserveFDs    int
	// DefaultSignals get their default action back: those that the caller ignores, which execve(2) hands on.
	DefaultSignals []int
	// NullStdio has a bit for each standard stream that is the null device: it becomes the container's own, if that is one.
	NullStdio uint
	// PipeStdio has a bit for each standard stream that is a pipe: it becomes the user's.
	PipeStdio uint
	// ConsoleFD is a connected unix socket that gets the master of the terminal; Terminal needs it.
	ConsoleFD int

	landlockFD    Cell
	listenerState Arg
}

// Scheduler is struct sched_attr.
type Scheduler struct {
	Policy                      uint32
	Flags                       uint64
	Nice                        int32
	Priority                    uint32
	Runtime, Deadline, PeriodNS uint64
}

// MemoryPolicy is what set_mempolicy(2) takes; Nodes is a mask in whole 64-bit words.
type MemoryPolicy struct {
	Mode  uint32
	Nodes []byte
}

// Mount is a mount of the plan, with what the host opened for it.
type Mount struct {
	rootfs.Mount
	// TreeFD is a detached mount (a bind source, a file system that the host has filled) or None.
	TreeFD int
	// IsFile says that the target is a file, not a directory.
	IsFile bool
	// Exists says that the host saw the target in the root file system, so that it need not be made.
	Exists bool
	// Target is Destination with the symlinks of the root file system resolved.
	Target string
	// Reopen is the source's real path on the host, if the child is to open it itself so that mounts are as old as their
	// order says; what it finds counts only if it is the file Dev, Ino, and else TreeFD does. "" leaves it at TreeFD.
	Reopen string
	Dev    uint64 // as st_dev has it
	Ino    uint64
}

// Device is a node to make below /dev.
type Device struct {
	Path         string // absolute
	Mode         uint32 // type and permission bits
	Major, Minor uint32
	UID, GID     uint32
	TreeFD       int // a bind mount of the host's node instead of mknod(2), in a user namespace
}

// Sysctl is one kernel parameter; Key has slashes.
type Sysctl struct{ Key, Value string }

// Create describes the first process of a container.
type Create struct {
	Process
	SyncFD   int // socket to the creating process
	ListenFD int // listening socket that start connects to; None takes start from SyncFD
	// Held, without a ListenFD, makes the process report when it has come to wait for start.
	Held     bool
	RootFD   int // detached tree of the root file system
	RootPath string
	Join     []Join
	// SetRootIDs makes the child uid and gid 0 of a user namespace that it has joined.
	SetRootIDs bool
	// Unshare are the namespaces that the child makes itself, once it has joined others: those of a container in a user
	// namespace that exists already, to which they have to belong. It then goes on in a child of its own, for which the host
	// waits (WaitFork).
	Unshare        int
	NewCgroupNS    bool
	TimeOffsets    string // for timens_offsets; with NewTimeNS
	NewTimeNS      bool
	Propagation    uint64
	PropagationRec bool
	Mounts         []Mount
	Devices        []Device
	DevLinks       bool // /dev/fd, /dev/stdin, ...
	KcoreLink      bool // /dev/core too, where the kernel has /proc/kcore
	NullFD         int  // detached mount of /dev/null for masks
	// MountLabel is linux.mountLabel where SELinux is: of masked directories and message queues. Other mounts have it
	// among their options.
	MountLabel    string
	MaskedPaths   []string
	ReadonlyPaths []string
	ReadonlyRoot  bool
	// Sealed are mounts that become read-only when everything below them is in place.
	Sealed  []string
	NoPivot bool
	// HostMounts says that there is no mount namespace: the root file system is attached where it is on the host, and the
	// process only has it as its root.
	HostMounts bool
	Hostname   string
	Domainname string
	Sysctls    []Sysctl
	Keyring    string // name of the new session keyring; "" keeps the caller's
	// HookPoint stops the child before pivot_root until the host has run its hooks.
	HookPoint bool
}

// Exec describes a further process of a container.
type Exec struct {
	Process
	SyncFD     int
	Join       []Join
	SetRootIDs bool
	Keyring    string
	// RootFD is the root directory of a container that has no mount namespace, which says what "/" is; 0, the standard
	// input, is none.
	RootFD int
	// Views are mounted over the container's own in a mount namespace of this process's, in their order.
	Views []View
	// Cgroups are what the process moves itself into before the host lets it go on.
	Cgroups []Cgroup
}

// Cgroup is a file that moves a process of one thread into a cgroup when it writes "0" to it.
type Cgroup struct {
	FD       int
	Path     string // for errors
	Optional bool   // it may go on if it can't
}

// View is a detached mount that a process sees in place of what the container has at a path.
type View struct {
	TreeFD      int
	Destination string
}

func cloneFlagName(flag int) string {
	for _, n := range []struct {
		flag int
		name string
	}{
		{unix.CLONE_NEWUSER, "user"},
		{unix.CLONE_NEWNS, "mount"},
		{unix.CLONE_NEWPID, "pid"},
		{unix.CLONE_NEWNET, "network"},
		{unix.CLONE_NEWIPC, "ipc"},
		{unix.CLONE_NEWUTS, "uts"},
		{unix.CLONE_NEWCGROUP, "cgroup"},
		{unix.CLONE_NEWTIME, "time"},
	} {
		if flag == n.flag {
			return n.name
		}
	}
	return "container's"
}

// Landlock is a ruleset as landlock_create_ruleset(2) and landlock_add_rule(2) take it.
type Landlock struct {
	HandledFS, HandledNet, Scoped uint64
	RestrictFlags                 uint64
	Paths                         []LandlockPath
	Ports                         []LandlockPort
}

// LandlockPath grants access below a path of the container's merged view. FileAccess is what is granted if the path
// turns out to be no directory. An optional path may be missing.
type LandlockPath struct {
	Path       string
	Access     uint64
	FileAccess uint64
	Optional   bool
}

// LandlockPort grants access to a TCP port.
type LandlockPort struct {
	Port   uint16
	Access uint64
}
