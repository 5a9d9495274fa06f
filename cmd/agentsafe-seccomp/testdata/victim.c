// victim loads the filters in its arguments, in order, and then tries what the tests expect to be allowed or refused.
// It prints the errno of each try, and ends with "alive": no filter may kill. Every try is harmless where it is allowed:
// without a filter it runs as root on somebody's machine.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int load(const char *path) {
	static struct sock_filter code[4096];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, code, sizeof code);
	close(fd);
	if (n <= 0)
		return -1;
	struct sock_fprog prog = {(unsigned short)(n / sizeof code[0]), code};
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog);
}

static void say(const char *name, long result) {
	printf("%s %s\n", name, result >= 0 ? "ok" : strerrorname_np(errno));
	fflush(stdout);
}

#define TRY(name, ...) (errno = 0, say(name, syscall(__VA_ARGS__)))

static void sockets(void) {
	static const struct { const char *name; long domain, type, protocol; } all[] = {
		{"socket-unix", AF_UNIX, SOCK_STREAM, 0},
		{"socket-inet", AF_INET, SOCK_STREAM, 0},
		{"socket-inet-udp", AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 17},
		{"socket-inet6", AF_INET6, SOCK_STREAM, 0},
		{"socket-netlink-route", AF_NETLINK, SOCK_RAW, 0},
		{"socket-netlink-diag", AF_NETLINK, SOCK_RAW, 4},
		{"socket-netlink-audit", AF_NETLINK, SOCK_RAW, 9},
		{"socket-netlink-xfrm", AF_NETLINK, SOCK_RAW, 6},
		{"socket-netlink-netfilter", AF_NETLINK, SOCK_RAW, 12},
		{"socket-alg", 38, SOCK_SEQPACKET, 0},
		{"socket-alg-high-bit", 38 | 1L << 32, SOCK_SEQPACKET, 0},
		{"socket-vsock", 40, SOCK_STREAM, 0},
		{"socket-packet", AF_PACKET, SOCK_RAW, 0},
		{"socket-inet-packet", AF_INET, 10, 0},
		{"socket-inet-packet-cloexec", AF_INET, 10 | SOCK_CLOEXEC, 0},
		{"socket-key", 15, SOCK_RAW, 2},
		{"socket-rxrpc", 33, SOCK_DGRAM, AF_INET},
		{"socket-xdp", 44, SOCK_RAW, 0},
		{"socket-tipc", 30, SOCK_STREAM, 0},
		{"socket-can", 29, SOCK_RAW, 1},
		{"socket-bluetooth", 31, SOCK_RAW, 0},
		{"socket-smc", 43, SOCK_STREAM, 0},
		{"socket-unspec", 0, SOCK_STREAM, 0},
		{"socket-mptcp", AF_INET, SOCK_STREAM, 262},
		{"socket-mptcp6", AF_INET6, SOCK_STREAM, 262},
		{"socket-mptcp-high-bit", AF_INET, SOCK_STREAM, 262 | 1L << 32},
		{"socket-sctp", AF_INET, SOCK_STREAM, 132},
		{"socket-dccp", AF_INET, 6, 33},
		{"socket-l2tp", AF_INET, SOCK_DGRAM, 115},
	};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		TRY(all[i].name, SYS_socket, all[i].domain, all[i].type, all[i].protocol);
	int pair[2];
	TRY("socketpair-unix", SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair);
	TRY("socketpair-alg", SYS_socketpair, 38, SOCK_SEQPACKET, 0, pair);
	TRY("socketpair-inet", SYS_socketpair, AF_INET, SOCK_STREAM, 0, pair);
}

static void terminals(void) {
	char c = 'x';
	TRY("ioctl-fionread", SYS_ioctl, 0, FIONREAD, &(int){0});
	TRY("ioctl-tiocsti", SYS_ioctl, 0, 0x5412, &c);
	TRY("ioctl-tiocsti-high-bit", SYS_ioctl, 0, 0x5412 | 1L << 32, &c);
	TRY("ioctl-tiocsti-sign", SYS_ioctl, 0, 0x5412 | 1L << 63, &c);
	TRY("ioctl-tioclinux", SYS_ioctl, 0, 0x541c, &c);
	TRY("ioctl-tiocsetd", SYS_ioctl, 0, 0x5423, &(int){0});
}

static void processes(void) {
	int status = 0;
	pid_t traced = fork();
	if (traced == 0)
		_exit(syscall(SYS_ptrace, 0, 0, 0, 0) ? errno : 0);
	waitpid(traced, &status, 0);
	errno = WEXITSTATUS(status);
	say("ptrace-traceme", errno ? -1 : 0);
	TRY("ptrace-attach", SYS_ptrace, 16, 0x7fffffff, 0, 0);
	TRY("process_vm_readv", SYS_process_vm_readv, getpid(), NULL, 0, NULL, 0, 0);
	TRY("process_vm_writev", SYS_process_vm_writev, getpid(), NULL, 0, NULL, 0, 0);
	TRY("kcmp", SYS_kcmp, 1, 1, 0, 0, 0);
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	say("pidfd_open", self);
	TRY("pidfd_getfd", 438, self, 0, 0);
	TRY("clone3", SYS_clone3, NULL, 0);
	static const struct { const char *name; unsigned long flag; } spaces[] = {
		{"newns", 0x20000}, {"newcgroup", 0x2000000}, {"newuts", 0x4000000}, {"newipc", 0x8000000},
		{"newuser", 0x10000000}, {"newpid", 0x20000000}, {"newnet", 0x40000000}, {"newtime", 0x80},
	};
	char name[64];
	for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
		snprintf(name, sizeof name, "unshare-%s", spaces[i].name);
		TRY(name, SYS_unshare, spaces[i].flag);
		if (spaces[i].flag == 0x80)
			continue; // clone has it as part of the signal
		snprintf(name, sizeof name, "clone-%s", spaces[i].name);
		errno = 0;
		long pid = syscall(SYS_clone, spaces[i].flag | SIGCHLD, 0, 0, 0, 0);
		if (pid == 0)
			_exit(0);
		say(name, pid);
		if (pid > 0)
			waitpid((pid_t)pid, NULL, 0);
	}
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	say("fork", child);
	waitpid(child, NULL, 0);
	TRY("setns", SYS_setns, self, 0x20000);
	TRY("personality-query", SYS_personality, 0xffffffffL);
	TRY("personality-query-signed", SYS_personality, -1L);
	TRY("personality-linux32", SYS_personality, 8);
	TRY("personality-linux", SYS_personality, 0);
	TRY("personality-norandomize", SYS_personality, 0x40000);
	TRY("personality-norandomize-high-bit", SYS_personality, 0x40000 | 1L << 32);
	TRY("personality-mmap-page-zero", SYS_personality, 0x100000);
}

static void kernel(void) {
	TRY("io_uring_setup", 425, 1, NULL);
	TRY("io_uring_enter", 426, 0, 0, 0, 0, NULL, 0);
	TRY("io_uring_register", 427, 0, 0, NULL, 0);
	TRY("userfaultfd", SYS_userfaultfd, 0);
	TRY("keyctl", SYS_keyctl, 0, 0, 0, 0, 0);
	TRY("add_key", SYS_add_key, "user", "x", "y", 1, -1);
	TRY("request_key", SYS_request_key, "user", "x", NULL, 0);
	TRY("bpf", SYS_bpf, 0, NULL, 0);
	TRY("perf_event_open", SYS_perf_event_open, NULL, 0, -1, -1, 0);
	TRY("mount", SYS_mount, "none", "/nowhere", "tmpfs", 0, NULL);
	TRY("umount2", SYS_umount2, "/nowhere", 0);
	TRY("pivot_root", SYS_pivot_root, "/nowhere", "/nowhere");
	TRY("open_tree", 428, -1, "/", 1);
	TRY("move_mount", 429, -1, "", -1, "", 0);
	TRY("fsopen", 430, "tmpfs", 0);
	TRY("fsconfig", 431, -1, 0, NULL, NULL, 0);
	TRY("fsmount", 432, -1, 0, 0);
	TRY("fspick", 433, -1, "/", 0);
	TRY("mount_setattr", 442, -1, "", 0, NULL, 0);
	TRY("open_tree_attr", 467, -1, "/", 1, NULL, 0);
	TRY("chroot", SYS_chroot, "/");
	TRY("init_module", SYS_init_module, NULL, 0, "");
	TRY("finit_module", SYS_finit_module, -1, "", 0);
	TRY("delete_module", SYS_delete_module, "x", 0);
	TRY("kexec_load", SYS_kexec_load, 0, 0, NULL, 0);
	TRY("reboot", SYS_reboot, 0, 0, 0, NULL);
	TRY("swapon", SYS_swapon, "/nowhere", 0);
	TRY("settimeofday", SYS_settimeofday, NULL, NULL);
	TRY("clock_settime", SYS_clock_settime, 0, NULL);
	TRY("sethostname", SYS_sethostname, NULL, 1000);
	TRY("syslog", SYS_syslog, 10, NULL, 0);
	TRY("acct", SYS_acct, "/nowhere");
	TRY("quotactl", SYS_quotactl, 0, NULL, 0, NULL);
	TRY("fanotify_init", SYS_fanotify_init, 0, 0);
	TRY("open_by_handle_at", SYS_open_by_handle_at, -1, NULL, 0);
	TRY("mbind", SYS_mbind, NULL, 0, 0, NULL, 0, 0);
	TRY("unknown-5000", 5000);
	TRY("unknown-minus-one", -1L);
	TRY("unknown-399", 399);
	TRY("memfd_create", SYS_memfd_create, "x", 0);
	TRY("landlock_create_ruleset", 444, NULL, 0, 1);
	TRY("seccomp", SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(unsigned){SECCOMP_RET_ALLOW});
	TRY("futex_wake", 454, NULL, 0, 0, 0);
	TRY("mseal", 462, NULL, 0, 0);
	TRY("close_range", 436, 1000, 2000, 0);
}

#ifdef __x86_64__
static long int80(long nr, long a, long b, long c) {
	long r;
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(nr), "b"(a), "c"(b), "d"(c) : "r8", "r9", "r10", "r11", "memory");
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

// apart makes a call in a child: a kernel without the ABI answers with a signal.
static void apart(const char *name, long nr, long a, long b, long c) {
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		errno = 0;
		_exit(int80(nr, a, b, c) < 0 ? errno : 0);
	}
	waitpid(child, &status, 0);
	if (WIFSIGNALED(status)) {
		printf("%s SIG%s\n", name, sigabbrev_np(WTERMSIG(status)));
		fflush(stdout);
		return;
	}
	errno = WEXITSTATUS(status);
	say(name, errno ? -1 : 0);
}

static void otherABIs(void) {
	apart("int80-getpid", 20, 0, 0, 0);
	apart("int80-socket", 359, 38, SOCK_SEQPACKET, 0);
	unsigned *args = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	args[0] = 38, args[1] = SOCK_SEQPACKET, args[2] = 0;
	apart("int80-socketcall", 102, 1, (long)args, 0);
	TRY("x32-getpid", 0x40000000 | SYS_getpid);
	TRY("x32-socket", 0x40000000 | SYS_socket, 38, SOCK_SEQPACKET, 0);
	TRY("x32-ptrace", 0x40000000 | 521, 0, 0, 0, 0);
}
#else
static void otherABIs(void) {}
#endif

int main(int argc, char **argv) {
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) {
		perror("no_new_privs");
		return 1;
	}
	for (int i = 1; i < argc; i++)
		if (load(argv[i])) {
			perror(argv[i]);
			return 1;
		}
	sockets();
	terminals();
	kernel();
	otherABIs();
	processes(); // last: without a filter it leaves namespaces, and with them capabilities and fork
	puts("alive ok");
	return 0;
}
