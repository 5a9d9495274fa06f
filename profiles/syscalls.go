package profiles

// baseAllowed are the calls that work in an image needs, for amd64 and arm64; of those an architecture lacks, nothing
// comes. Derived from what Docker's default profile allows a container without added capabilities, minus what refused
// lists. Source: github.com/moby/profiles seccomp v0.3.0, Linux 6.17's syscall tables.
func baseAllowed() []string {
	return []string{
		// files by descriptor and path
		"access", "chdir", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3",
		"faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown",
		"fchownat", "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate", "futimesat", "getcwd",
		"getdents", "getdents64", "ioctl", "lchown", "link", "linkat", "lseek", "lstat", "mkdir", "mkdirat", "mknod",
		"mknodat", "name_to_handle_at", "newfstatat", "open", "openat", "openat2", "pread64", "preadv", "preadv2",
		"pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv", "rename", "renameat",
		"renameat2", "rmdir", "sendfile", "splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync",
		"sync_file_range", "syncfs", "tee", "truncate", "umask", "unlink", "unlinkat", "utime", "utimensat", "utimes",
		"vmsplice", "write", "writev", "cachestat", "listmount", "statmount", "chroot",
		// extended attributes
		"fgetxattr", "flistxattr", "fremovexattr", "fsetxattr", "getxattr", "lgetxattr", "listxattr", "llistxattr",
		"lremovexattr", "lsetxattr", "removexattr", "setxattr", "getxattrat", "listxattrat", "removexattrat",
		"setxattrat", "file_getattr", "file_setattr",
		// waiting and notification
		"epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2",
		"inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "pause", "pipe", "pipe2", "poll",
		"ppoll", "pselect6", "select", "signalfd", "signalfd4", "timerfd_create", "timerfd_gettime", "timerfd_settime",
		// old asynchronous I/O (databases)
		"io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit",
		// processes and threads
		"arch_prctl", "execve", "execveat", "exit", "exit_group", "fork", "futex", "futex_requeue", "futex_wait",
		"futex_waitv", "futex_wake", "get_robust_list", "getcpu", "getpgid", "getpgrp", "getpid", "getppid", "getsid",
		"gettid", "kill", "membarrier", "pidfd_open", "pidfd_send_signal", "prctl", "process_mrelease", "restart_syscall",
		"rseq", "rseq_slice_yield", "set_robust_list", "set_tid_address", "setpgid", "setsid", "tgkill", "tkill",
		"uretprobe", "uprobe", "vfork", "wait4", "waitid",
		// identity and limits
		"capget", "capset", "getegid", "geteuid", "getgid", "getgroups", "getpriority", "getresgid", "getresuid",
		"getrlimit", "getrusage", "getuid", "ioprio_get", "ioprio_set", "prlimit64", "setfsgid", "setfsuid", "setgid",
		"setgroups", "setpriority", "setregid", "setresgid", "setresuid", "setreuid", "setrlimit", "setuid", "sysinfo",
		"times", "uname",
		// scheduling
		"sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam",
		"sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setattr", "sched_setparam",
		"sched_setscheduler", "sched_yield",
		// signals
		"rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend",
		"rt_sigtimedwait", "rt_tgsigqueueinfo", "sigaltstack",
		// time; the adjtimex calls only read without CAP_SYS_TIME
		"adjtimex", "alarm", "clock_adjtime", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer",
		"gettimeofday", "nanosleep", "setitimer", "time", "timer_create", "timer_delete", "timer_getoverrun",
		"timer_gettime", "timer_settime",
		// memory; memfd_create because Wasmtime, CUDA and runtimes need it (OpenShell#1427)
		"brk", "madvise", "map_shadow_stack", "memfd_create", "memfd_secret", "mincore", "mlock", "mlock2", "mlockall",
		"mmap", "mprotect", "mremap", "mseal", "msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free",
		"pkey_mprotect", "remap_file_pages",
		// System V and POSIX IPC
		"mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl", "msgget",
		"msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmdt", "shmget",
		// sockets; socket and socketpair have rules of their own
		"accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom",
		"recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
		// sandboxes inside: Chromium and agents install filters of their own (codex#18800)
		"landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "seccomp",
		"getrandom",
	}
}

// refusal is a group of calls that the filter of ours refuses, and why.
type refusal struct {
	names []string
	why   string
}

// refused are the known calls that answer EPERM, by reason. A name that is neither here nor allowed is refused too; the
// list is there to be read, and so that a test can tell a decision from an omission.
func refused() []refusal {
	return []refusal{
		{[]string{"io_uring_setup", "io_uring_enter", "io_uring_register"}, "sockets and files without the calls that are filtered"},
		{debugCalls(), "other processes' memory"},
		{[]string{"userfaultfd"}, "holds the kernel still in the middle of a copy"},
		{[]string{"add_key", "keyctl", "request_key"}, "keyrings are not namespaced"},
		{[]string{"bpf", "perf_event_open"}, "programs and probes in the kernel"},
		{mountCalls(), "file systems are set up by the runtime"},
		{[]string{"setns", "unshare"}, "namespaces open the kernel's privileged half to everybody"},
		{[]string{"fanotify_init", "fanotify_mark", "open_by_handle_at"}, "files outside of the root file system"},
		{[]string{"quotactl", "quotactl_fd"}, "limits of the host's file systems"},
		{[]string{"create_module", "delete_module", "finit_module", "get_kernel_syms", "init_module", "query_module"}, "kernel modules"},
		{[]string{"kexec_file_load", "kexec_load", "reboot"}, "another kernel"},
		{[]string{"swapoff", "swapon"}, "the host's swap"},
		{[]string{"clock_settime", "settimeofday"}, "the host's clock"},
		{[]string{"acct", "lookup_dcookie", "syslog", "vhangup"}, "the host's accounts, log and terminals"},
		{[]string{"setdomainname", "sethostname"}, "set by the runtime"},
		{[]string{"ioperm", "iopl"}, "I/O ports"},
		{[]string{"get_mempolicy", "mbind", "migrate_pages", "move_pages", "set_mempolicy", "set_mempolicy_home_node"}, "placement of memory is the host's"},
		{[]string{"lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr"}, "labels are set by the runtime"},
		{[]string{"modify_ldt"}, "16-bit and 32-bit segments, a source of kernel bugs"},
		{[]string{"listns"}, "other namespaces of the host"},
		{[]string{
			"_sysctl", "afs_syscall", "epoll_ctl_old", "epoll_wait_old", "getpmsg", "nfsservctl", "putpmsg", "security",
			"sysfs", "tuxcall", "uselib", "ustat", "vserver", "get_thread_area", "set_thread_area",
		}, "obsolete"},
	}
}

// debugCalls come with PackDebug.
func debugCalls() []string {
	return []string{"kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace"}
}

// mountCalls come with PackContainers.
func mountCalls() []string {
	return []string{"fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree", "open_tree_attr", "pivot_root", "umount2"}
}

// containerCalls are what else PackContainers brings.
func containerCalls() []string {
	return []string{"clone", "setdomainname", "sethostname", "setns", "unshare"}
}
