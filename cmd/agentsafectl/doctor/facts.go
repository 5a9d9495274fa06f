package doctor

// Facts is what Probe found. An Err field is empty if the thing works.
type Facts struct {
	Release string // uname -r
	Machine string // GOARCH
	UID     int
	CapsEff uint64 // effective capabilities, bit by number

	LandlockABI int // 0: not there
	LandlockErr string

	SeccompFilter      bool
	SeccompActions     []string // of the kernel
	SeccompWaitKillErr string

	Syscalls    map[string]string // name to error text; empty for one that exists
	Namespaces  []string          // kinds that /proc/self/ns knows
	MemfdErr    string            // making, sealing and making executable
	MemfdNoExec int               // sysctl vm.memfd_noexec

	UserNSMax    int // sysctl user.max_user_namespaces; -1 if unknown
	UserNSErr    string
	UserNSForAll bool // also without privilege, as far as sysctls say
	SubIDs       bool // the user has subordinate ids
	// Mappers says that newuidmap and newgidmap are there, Delegated which cgroup controllers an ordinary user who asks
	// can limit by.
	Mappers        bool
	Delegated      []string
	OverlayErr     string
	OverlayUserErr string // with userxattr, in a user namespace
	NFTablesErr    string
	CoreToProgram  string // core_pattern, if it pipes to a program
	LSMs           []string
	AppArmor       bool
	SELinux        bool

	Cgroup CgroupFacts

	Config HostConfigFacts

	Programs map[string]string // name to path; empty if not found
	Dirs     []DirFacts
	Engines  []EngineFacts
}

// CgroupFacts describes the control groups.
type CgroupFacts struct {
	Mode        string   // unified, hybrid, legacy or none
	Controllers []string // usable ones of either version
	Writable    bool     // groups can be made here
	Kill        bool     // cgroup.kill, v2
	IntoErr     string   // clone3 into a cgroup, v2
	Systemd     bool     // systemd is the init
}

// HostConfigFacts is what the administrator has configured.
type HostConfigFacts struct {
	Err      string
	Default  string   // profile of containers for which nobody chose one; empty: agent
	Handlers []string // NAME=PROFILE
	WarnOnly []string // the names whose profile is not enforced
}

// DirFacts describes a directory of ours.
type DirFacts struct {
	Name, Path string
	Exists     bool
	Mode       uint32 // permission bits
	UID        uint32
	FreeBytes  uint64
	Err        string
}

// EngineFacts describes an engine.
type EngineFacts struct {
	Name       string // docker, containerd, podman, cri-o
	Version    string // empty: not installed
	ConfigPath string // where agentsafe is, or should be, registered
	Registered bool
	ConfigErr  string
}
