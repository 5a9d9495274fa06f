package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

type call struct {
	name string
	do   func() error
}

// raw is a call by number whose arguments the kernel refuses, if the call reaches it.
func raw(name string, nr uintptr, args ...uintptr) call {
	return call{name, func() error {
		var a [6]uintptr
		copy(a[:], args)
		_, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno != 0 {
			return errno
		}
		return nil
	}}
}

// socket makes and closes a socket.
func socket(name string, family, kind, protocol int) call {
	return call{"socket " + name, func() error {
		fd, err := unix.Socket(family, kind, protocol)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}}
}

const (
	badFD     = ^uintptr(0)
	badMemory = uintptr(8)
)

func callTable() []call {
	return append(append(append(rawCalls(), socketCalls()...), processCalls()...), archCalls()...)
}

func rawCalls() []call {
	return []call{
		raw("io_uring_setup", unix.SYS_IO_URING_SETUP, 1, badMemory),
		raw("io_uring_enter", unix.SYS_IO_URING_ENTER, badFD),
		raw("io_uring_register", unix.SYS_IO_URING_REGISTER, badFD),
		raw("mount", unix.SYS_MOUNT, badMemory, badMemory, badMemory, 0, 0),
		raw("umount2", unix.SYS_UMOUNT2, badMemory),
		raw("pivot_root", unix.SYS_PIVOT_ROOT, badMemory, badMemory),
		raw("fsopen", unix.SYS_FSOPEN, badMemory),
		raw("fsmount", unix.SYS_FSMOUNT, badFD),
		raw("fspick", unix.SYS_FSPICK, badFD, badMemory),
		raw("open_tree", unix.SYS_OPEN_TREE, badFD, badMemory),
		raw("move_mount", unix.SYS_MOVE_MOUNT, badFD, badMemory, badFD, badMemory),
		raw("mount_setattr", unix.SYS_MOUNT_SETATTR, badFD, badMemory),
		raw("setns", unix.SYS_SETNS, badFD),
		raw("unshare nothing", unix.SYS_UNSHARE, 0),
		raw("unshare mount", unix.SYS_UNSHARE, unix.CLONE_NEWNS),
		raw("unshare network", unix.SYS_UNSHARE, unix.CLONE_NEWNET),
		raw("clone3", unix.SYS_CLONE3, badMemory, 88),
		raw("bpf", unix.SYS_BPF, 0, badMemory, 8),
		raw("perf_event_open", unix.SYS_PERF_EVENT_OPEN, badMemory),
		raw("userfaultfd", unix.SYS_USERFAULTFD, 1),
		raw("keyctl", unix.SYS_KEYCTL, 0, 0),
		raw("add_key", unix.SYS_ADD_KEY, badMemory, badMemory),
		raw("request_key", unix.SYS_REQUEST_KEY, badMemory, badMemory),
		raw("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, badMemory),
		raw("init_module", unix.SYS_INIT_MODULE, badMemory, 0, badMemory),
		raw("finit_module", unix.SYS_FINIT_MODULE, badFD, badMemory),
		raw("delete_module", unix.SYS_DELETE_MODULE, badMemory),
		raw("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, badFD, badMemory),
		raw("process_vm_readv", unix.SYS_PROCESS_VM_READV, uintptr(os.Getppid()), badMemory, 1, badMemory, 1),
		raw("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, uintptr(os.Getppid()), badMemory, 1, badMemory, 1),
		raw("pidfd_getfd", unix.SYS_PIDFD_GETFD, badFD),
		raw("swapon", unix.SYS_SWAPON, badMemory),
		raw("acct", unix.SYS_ACCT, badMemory),
		raw("settimeofday", unix.SYS_SETTIMEOFDAY, badMemory),
		raw("syslog", unix.SYS_SYSLOG, 3, badMemory, 8),
		raw("quotactl", unix.SYS_QUOTACTL, 0, badMemory),
		raw("personality no randomisation", unix.SYS_PERSONALITY, 0x40000),
		raw("unknown", 9999),
		raw("ioctl TIOCSTI", unix.SYS_IOCTL, badFD, unix.TIOCSTI),
		raw("ioctl TIOCLINUX", unix.SYS_IOCTL, badFD, 0x541c),
		raw("ioctl TIOCSTI with high bits", unix.SYS_IOCTL, badFD, 1<<32|unix.TIOCSTI),
		// What work needs.
		raw("memfd_create", unix.SYS_MEMFD_CREATE, badMemory),
		raw("pidfd_open", unix.SYS_PIDFD_OPEN, badFD),
		raw("seccomp", unix.SYS_SECCOMP, 9, 0),
		raw("landlock_create_ruleset", unix.SYS_LANDLOCK_CREATE_RULESET, badMemory, 8),
		raw("renameat2", unix.SYS_RENAMEAT2, badFD, badMemory, badFD, badMemory),
		raw("close_range", unix.SYS_CLOSE_RANGE, 2, 1),
	}
}

func socketCalls() []call {
	const ipprotoMPTCP, ipprotoSMC = 262, 256
	return []call{
		socket("unix", unix.AF_UNIX, unix.SOCK_STREAM, 0),
		socket("tcp", unix.AF_INET, unix.SOCK_STREAM, 0),
		socket("tcp6", unix.AF_INET6, unix.SOCK_STREAM, 0),
		socket("udp", unix.AF_INET, unix.SOCK_DGRAM, 0),
		socket("ping", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
		socket("raw", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		socket("mptcp", unix.AF_INET, unix.SOCK_STREAM, ipprotoMPTCP),
		socket("smc", unix.AF_INET, unix.SOCK_STREAM, ipprotoSMC),
		socket("seqpacket", unix.AF_INET, unix.SOCK_SEQPACKET, 0),
		socket("netlink route", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
		socket("netlink netfilter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER),
		socket("netlink xfrm", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM),
		socket("packet", unix.AF_PACKET, unix.SOCK_RAW, 0),
		socket("alg", unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		socket("vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		socket("key", unix.AF_KEY, unix.SOCK_RAW, 2),
		socket("xdp", unix.AF_XDP, unix.SOCK_RAW, 0),
		socket("rxrpc", unix.AF_RXRPC, unix.SOCK_DGRAM, unix.AF_INET),
		socket("tipc", unix.AF_TIPC, unix.SOCK_SEQPACKET, 0),
	}
}

func processCalls() []call {
	return []call{
		{"ptrace attach to a child", func() error {
			return withChild(func(pid int) error {
				if err := unix.PtraceSeize(pid); err != nil {
					return err
				}
				return nil
			})
		}},
		{"ptrace traceme", func() error {
			cmd := exec.Command("/proc/self/exe", "nop")
			cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
			err := cmd.Start()
			if err == nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
			return err
		}},
		{"read a child's memory", func() error {
			return withChild(func(pid int) error {
				local := []unix.Iovec{{Base: new(byte)}}
				local[0].SetLen(1)
				_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
				return err
			})
		}},
		{"clone user namespace", func() error { return spawn(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}) }},
		{"clone pid namespace", func() error { return spawn(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}) }},
		{"unshare user namespace", func() error { return spawn(&syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWUSER}) }},
		{"mknod block device", func() error {
			defer func() { _ = os.Remove("/tmp/probe-block") }()
			return unix.Mknod("/tmp/probe-block", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0)))
		}},
		{"chroot", func() error { return unix.Chroot("/") }},
		{"setuid 1", func() error { return syscall.Setuid(1) }},
		{"write sysrq-trigger", func() error { return openForWriting("/proc/sysrq-trigger") }},
		{"write core_pattern", func() error { return openForWriting("/proc/sys/kernel/core_pattern") }},
		{"write release_agent", func() error { return openForWriting("/sys/fs/cgroup/pids/release_agent") }},
	}
}

func openForWriting(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func spawn(attr *syscall.SysProcAttr) error {
	cmd := exec.Command("/proc/self/exe", "nop")
	cmd.SysProcAttr = attr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil // it was made
	}
	return err
}

// withChild runs do on a child process that waits.
func withChild(do func(pid int) error) error {
	cmd := exec.Command("/proc/self/exe", "serve", "127.0.0.1:0", "x")
	if err := cmd.Start(); err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond) // the child may still be this program's copy on its way to execve
	err := do(cmd.Process.Pid)
	_ = cmd.Process.Kill()
	_, _ = cmd.Process.Wait()
	return err
}
