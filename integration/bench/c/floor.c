// floor: the least that a container can cost on this kernel. One process is cloned into new namespaces, mounts what
// every container has, changes its root and executes /bin/true; nothing is checked, limited or filtered. Runtimes are
// measured in multiples of it.
//
//	cc -O2 -o floor floor.c && ./floor ROOTFS
//
// ROOTFS needs bin/true (static) and the directories proc, dev and sys. One run; it is timed from outside.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int result, const char *what) {
	if (result < 0) {
		perror(what);
		_exit(1);
	}
}

static void contain(const char *root) {
	const unsigned long safe = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
	must(mount(root, root, NULL, MS_BIND | MS_REC, NULL), "bind root");
	must(chdir(root), "enter root");
	must(mount("proc", "proc", "proc", safe, NULL), "mount proc");
	must(mount("tmpfs", "dev", "tmpfs", MS_NOSUID, "mode=755,size=65536k"), "mount dev");
	must(mkdir("dev/pts", 0755), "make dev/pts");
	must(mkdir("dev/shm", 0755), "make dev/shm");
	must(mkdir("dev/mqueue", 0755), "make dev/mqueue");
	must(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"), "mount pts");
	must(mount("shm", "dev/shm", "tmpfs", safe, "mode=1777,size=65536k"), "mount shm");
	must(mount("mqueue", "dev/mqueue", "mqueue", safe, NULL), "mount mqueue");
	must(mount("sysfs", "sys", "sysfs", safe | MS_RDONLY, NULL), "mount sys");
	must(syscall(SYS_pivot_root, ".", "."), "pivot root");
	must(umount2(".", MNT_DETACH), "detach old root");
	must(chdir("/"), "enter new root");
	char *argv[] = {"true", NULL};
	char *env[] = {NULL};
	execve("/bin/true", argv, env);
	must(-1, "execute");
}

int main(int argc, char **argv) {
	if (argc != 2) {
		fprintf(stderr, "usage: floor ROOTFS\n");
		return 2;
	}
	const long flags = SIGCHLD | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP | CLONE_NEWNET;
	long pid = syscall(SYS_clone, flags, 0, 0, 0, 0);
	must(pid, "clone");
	if (pid == 0)
		contain(argv[1]);
	int status;
	must(waitpid(pid, &status, 0), "wait");
	return status != 0;
}
