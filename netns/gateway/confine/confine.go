package confine

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process confines the calling process for good. It must not have been linked with cgo.
func Process() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set undumpable: %w", err)
	}
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("set no_new_privs: %w", e)
	}
	if err := landlock(); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	if err := seccomp(filter()); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

// Bounds of the process. A Go program reserves address space generously, so the bound on data is far above what the
// runtime is told to stay below.
const dataMaxBytes = 1 << 30

// Limits lowers the process's resource limits for good, and takes as many open files as it may have.
func Limits() error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("read limit of open files: %w", err)
	}
	files.Cur = files.Max
	for resource, limit := range map[int]*unix.Rlimit{
		unix.RLIMIT_NOFILE: &files,
		unix.RLIMIT_DATA:   {Cur: dataMaxBytes, Max: dataMaxBytes},
		unix.RLIMIT_CORE:   {},
	} {
		if err := unix.Setrlimit(resource, limit); err != nil {
			return fmt.Errorf("set limit %d: %w", resource, err)
		}
	}
	return nil
}

// landlockAccess returns the rights that an ABI knows. Source: linux/landlock.h.
func landlockAccess(abi int) unix.LandlockRulesetAttr {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: 1<<13 - 1}
	if abi >= 2 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 4 {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP
	}
	if abi >= 5 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	return attr
}

func landlock() error {
	abi, err := landlockABI()
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return err
	}
	fd, err := createRuleset(landlockAccess(abi), abi)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0); e != 0 {
		return fmt.Errorf("restrict self: %w", e)
	}
	return nil
}

// Offsets of struct seccomp_data, and the answer to a call that isn't on the list: EPERM, because the Go runtime copes
// with refusals, while killing would make a new runtime's new call an outage.
const (
	dataNumber = 0
	dataArch   = 4
	x32Bit     = 0x40000000
	refuse     = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.EPERM)
)

// filter allows calls of the native ABI that are on the list.
func filter() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	out := []unix.SockFilter{
		load(dataArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1},
		ret(unix.SECCOMP_RET_KILL_PROCESS),
		load(dataNumber),
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: x32Bit, Jf: 1},
		ret(refuse),
	}
	for _, n := range append(calls(), archCalls()...) {
		out = append(out, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(n), Jf: 1}, ret(unix.SECCOMP_RET_ALLOW))
	}
	return append(out, ret(refuse))
}

// calls are those of the Go runtime and of a server that has all its files open. The order is by frequency: the list is
// walked from the front.
func calls() []int {
	return []int{
		// bytes and readiness
		unix.SYS_SPLICE, unix.SYS_READ, unix.SYS_WRITE, unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT, unix.SYS_NANOSLEEP,
		unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_RECVFROM, unix.SYS_SENDTO, unix.SYS_RECVMSG, unix.SYS_SENDMSG,
		unix.SYS_PPOLL, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_CREATE1, unix.SYS_EVENTFD2, unix.SYS_PIPE2, unix.SYS_FCNTL,
		unix.SYS_SOCKETPAIR,
		// connections; no socket can be made to listen
		unix.SYS_ACCEPT4, unix.SYS_CLOSE, unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_SHUTDOWN, unix.SYS_GETSOCKNAME,
		unix.SYS_GETPEERNAME, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_BIND,
		// the runtime: memory, threads, time, signals of its own
		unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MPROTECT, unix.SYS_MINCORE, unix.SYS_BRK, unix.SYS_PRCTL,
		unix.SYS_CLONE, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY,
		unix.SYS_CLOCK_NANOSLEEP, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
		unix.SYS_RESTART_SYSCALL, unix.SYS_TGKILL, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETRANDOM,
		unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_GETRLIMIT, unix.SYS_PRLIMIT64,
	}
}
