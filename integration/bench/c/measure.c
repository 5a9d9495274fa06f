// measure: start a program, wait for it, print how long it took (nanoseconds), the peak memory of it and of the
// children it reaped (KiB), its exit code, and the processor time of the same (microseconds). The program's output is
// dropped unless it fails.
//
//	measure PROGRAM ARGS...
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv) {
	if (argc < 2)
		return 2;
	long long start = now();
	pid_t pid = vfork();
	if (pid < 0)
		return 1;
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);
		dup2(null, 0);
		dup2(null, 1);
		execv(argv[1], argv + 1);
		_exit(127);
	}
	int status;
	struct rusage use;
	if (wait4(pid, &status, 0, &use) < 0)
		return 1;
	long long took = now() - start;
	long long cpu = (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000LL + use.ru_utime.tv_usec + use.ru_stime.tv_usec;
	printf("%lld %ld %d %lld\n", took, use.ru_maxrss, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), cpu);
	return 0;
}
