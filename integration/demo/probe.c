/*
 * probe tries what a task under agentsafe must not be able to do, one line per
 * attempt, and says what came of it. Its exit status is 0 if every attempt was
 * refused. Attempts that are named on the command line are made, or all.
 */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each attempt returns 0 if it got through, or an errno. */

static int connect_to(const char *address, int port)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int err = 0;
	socklen_t len = sizeof(err);

	if (fd < 0)
		return errno;
	inet_pton(AF_INET, address, &to.sin_addr);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0) {
		close(fd);
		return 0;
	}
	err = errno;
	if (err == EINPROGRESS) {
		struct pollfd wait = {.fd = fd, .events = POLLOUT};

		err = ETIMEDOUT;
		if (poll(&wait, 1, 3000) == 1)
			getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len);
	}
	close(fd);
	return err;
}

static int metadata(void) { return connect_to("169.254.169.254", 80); }

static int read_shadow(void)
{
	int fd = open("/etc/shadow", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return errno;
	close(fd);
	return 0;
}

static int do_mount(void)
{
	if (mount("tmpfs", "/mnt", "tmpfs", 0, "") < 0)
		return errno;
	umount("/mnt");
	return 0;
}

static int do_ptrace(void)
{
	int err = 0;
	pid_t pid = fork();

	if (pid == 0)
		for (;;)
			pause();
	if (ptrace(PTRACE_ATTACH, pid, NULL, NULL) < 0)
		err = errno;
	else
		waitpid(pid, NULL, 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return err;
}

static int io_uring(void)
{
	char params[120] = {0}; /* struct io_uring_params */
	long fd = syscall(SYS_io_uring_setup, 1, params);

	if (fd < 0)
		return errno;
	close(fd);
	return 0;
}

static int new_user_namespace(void)
{
	pid_t pid = fork();
	int status = 0;

	if (pid == 0)
		_exit(unshare(CLONE_NEWUSER) < 0 ? errno : 0);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

static int kernel_crypto(void)
{
	int fd = socket(AF_ALG, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return errno;
	close(fd);
	return 0;
}

static int write_usr(void)
{
	int fd = open("/usr/agentsafe-probe", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	if (fd < 0)
		return errno;
	close(fd);
	unlink("/usr/agentsafe-probe");
	return 0;
}

static const struct {
	const char *name, *what;
	int (*try)(void);
} attempts[] = {
	{"metadata", "connect to the cloud's metadata service, 169.254.169.254", metadata},
	{"shadow", "read the host's password hashes, /etc/shadow", read_shadow},
	{"mount", "mount a file system", do_mount},
	{"ptrace", "trace another process", do_ptrace},
	{"io_uring", "set up io_uring", io_uring},
	{"userns", "make a user namespace", new_user_namespace},
	{"af_alg", "open a socket of the kernel's crypto API (AF_ALG)", kernel_crypto},
	{"usr", "write to /usr", write_usr},
};

static int wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return 1;
	return argc < 2;
}

int main(int argc, char **argv)
{
	int through = 0;

	for (size_t i = 0; i < sizeof(attempts) / sizeof(attempts[0]); i++) {
		int err;

		if (!wanted(attempts[i].name, argc, argv))
			continue;
		err = attempts[i].try();
		if (err == 0)
			through++;
		printf("  %-8s  %-57s %s\n", err == 0 ? "ALLOWED" : "refused", attempts[i].what, err == 0 ? "" : strerror(err));
		fflush(stdout);
	}
	return through != 0;
}
