package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// constantAllow reports whether the kernel finds out, when a filter is installed, that it allows a call whatever its
// arguments are. Such a call is looked up in a bitmap and runs no filter; of several filters all have to be so. A load of
// an argument ends the kernel's attempt, even on a way that allows. Source: kernel/seccomp.c, seccomp_is_const_allow.
func constantAllow(program []unix.SockFilter, nr, arch uint32) bool {
	var acc uint32
	for pc := 0; pc < len(program); pc++ {
		i := program[pc]
		switch i.Code {
		case opLoad:
			switch i.K {
			case dataNumber:
				acc = nr
			case dataArch:
				acc = arch
			default:
				return false
			}
		case opAnd:
			acc &= i.K
		case opAlways:
			pc += int(i.K)
		case opReturn:
			return i.K == unix.SECCOMP_RET_ALLOW
		case opEqual, opGreat, opGreatE, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			pc += jump(i, compare(i, acc))
		default:
			return false
		}
	}
	return false
}

// hotCalls are what compilers, package managers, interpreters and git spend their system calls on.
func hotCalls() []string {
	return strings.Fields(`read write pread64 pwrite64 readv writev open openat openat2 close close_range fstat stat lstat newfstatat statx lseek
		access faccessat faccessat2 readlink readlinkat getdents64 mkdir mkdirat unlink unlinkat rename renameat renameat2 link linkat symlink
		chmod fchmod fchmodat utimensat ftruncate fsync fallocate copy_file_range sendfile splice getcwd chdir fchdir dup dup2 dup3 fcntl flock pipe pipe2
		mmap mprotect munmap mremap madvise brk futex rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack tgkill
		execve execveat vfork fork wait4 waitid exit exit_group getpid getppid gettid getuid geteuid getgid getegid
		set_tid_address set_robust_list rseq prlimit64 getrlimit sched_getaffinity sched_yield getrandom clock_gettime clock_nanosleep nanosleep
		epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 poll ppoll select pselect6 eventfd2 timerfd_settime inotify_add_watch
		connect bind listen accept accept4 sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg getsockopt setsockopt getsockname getpeername shutdown
		memfd_create pidfd_open uname sysinfo umask statfs fstatfs getxattr lgetxattr fadvise64 readahead`)
}

// judged are the calls that a filter allows for some arguments and not for others, by what it must not leave to a task.
// Whatever joins them costs each such call a run of every filter: it should be worth that.
func judged(program []unix.SockFilter, native abi) []string {
	var out []string
	const last = 480
	for nr := range uint32(last) {
		name, ok := native.name(nr)
		allows := slices.ContainsFunc(explain(program, nr, native.token), func(p path) bool { return p.answer == unix.SECCOMP_RET_ALLOW })
		if ok && allows && !constantAllow(program, nr, native.token) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// TestHotCalls shows that what tasks call most is answered from the kernel's bitmap, under every built-in profile on
// every engine's own filter, and which calls are not.
func TestHotCalls(t *testing.T) {
	abis, err := filterABIs(&profiles.SeccompFilter{Arch: runtime.GOARCH})
	if err != nil {
		t.Fatal(err)
	}
	native := abis[0]
	ours := []string{"clone", "ioctl", "personality", "socket", "socketpair"}
	check := func(t *testing.T, f *profiles.SeccompFilter, want []string) {
		t.Helper()
		program := mustCompile(t, f)
		for _, name := range hotCalls() {
			if nr, ok := native.number(name); ok && !constantAllow(program, nr, native.token) {
				t.Errorf("%s: %s runs the filter: %v", f.Name, name, explain(program, nr, native.token))
			}
		}
		if got := judged(program, native); !slices.Equal(got, want) {
			t.Errorf("%s: judged by arguments are %v, want %v", f.Name, got, want)
		}
	}
	for engine, want := range map[string][]string{
		"docker": {"clone", "personality"}, "containerd": {"clone", "personality", "socket"}, "podman": {"personality", "socket"},
	} {
		t.Run("engine "+engine, func(t *testing.T) {
			for _, f := range filters(t, engine, nil) {
				if f.Name == "engine" {
					check(t, &f, want)
				}
			}
		})
	}
	for _, name := range profiles.BuiltinNames() {
		if name == profiles.NameNone {
			continue // it has the engine's alone
		}
		t.Run("profile "+name, func(t *testing.T) {
			p, err := profiles.Builtin(name)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(ours)
			if p.HasPack(profiles.PackBrowser) {
				want = append(want, "unshare")
			}
			for _, f := range filters(t, "docker", func(q *profiles.Profile) { q.Name, q.Syscalls = p.Name, p.Syscalls }) {
				if f.Name != "engine" {
					check(t, &f, want)
				}
			}
		})
	}
}

// An argument that is looked at takes a call off the bitmap: the test above can fail.
func TestConstantAllow(t *testing.T) {
	for _, f := range filters(t, "docker", func(p *profiles.Profile) { p.Network.ConnectPorts = []profiles.PortRange{} }) {
		program := mustCompile(t, &f)
		for name, want := range map[string]bool{"read": true, "sendto": f.Name == "engine", "mount": false} {
			nr, err := numberOf(name)
			if err != nil {
				t.Fatal(err)
			}
			if got := constantAllow(program, nr, unix.AUDIT_ARCH_X86_64); runtime.GOARCH == "amd64" && got != want {
				t.Errorf("%s: %s: %v, want %v", f.Name, name, got, want)
			}
		}
	}
}

func numberOf(name string) (uint32, error) {
	abis, err := filterABIs(&profiles.SeccompFilter{Arch: runtime.GOARCH})
	if err != nil {
		return 0, err
	}
	nr, ok := abis[0].number(name)
	if !ok {
		return 0, fmt.Errorf("%s has no number", name)
	}
	return nr, nil
}
