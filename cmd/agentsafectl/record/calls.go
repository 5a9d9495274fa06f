package record

import (
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// call is a system call that the run stops for.
type call struct {
	name string
	see  func(r *recorder, t *stop)
}

// none is for a path that is relative to the working directory, always.
const none = -1

// calls lists what the run stops for. The index is the message of SECCOMP_RET_TRACE.
func calls() []call {
	watched := watchedCalls()
	names := profiles.RecordedCalls()
	out := make([]call, len(names))
	for i, name := range names {
		see, ok := watched[name]
		if !ok {
			see = func(r *recorder, _ *stop) { r.count(r.seen.Calls, name) }
		}
		out[i] = call{name, see}
	}
	return out
}

// watchedCalls are the ones whose arguments are looked at.
func watchedCalls() map[string]func(r *recorder, t *stop) {
	written := func(pairs ...[2]int) func(*recorder, *stop) {
		return func(r *recorder, t *stop) {
			for _, p := range pairs {
				r.file(t, p[0], p[1], kindWrite)
			}
		}
	}
	return map[string]func(r *recorder, t *stop){
		"open":      func(r *recorder, t *stop) { r.open(t, none, 0, t.args[1]) },
		"openat":    func(r *recorder, t *stop) { r.open(t, 0, 1, t.args[2]) },
		"openat2":   func(r *recorder, t *stop) { r.open(t, 0, 1, t.word(t.args[2])) },
		"creat":     written([2]int{none, 0}),
		"execve":    func(r *recorder, t *stop) { r.execute(t, none, 0) },
		"execveat":  func(r *recorder, t *stop) { r.execute(t, 0, 1) },
		"mkdir":     written([2]int{none, 0}),
		"mkdirat":   written([2]int{0, 1}),
		"mknod":     written([2]int{none, 0}),
		"mknodat":   written([2]int{0, 1}),
		"rmdir":     written([2]int{none, 0}),
		"unlink":    written([2]int{none, 0}),
		"unlinkat":  written([2]int{0, 1}),
		"rename":    written([2]int{none, 0}, [2]int{none, 1}),
		"renameat":  written([2]int{0, 1}, [2]int{2, 3}),
		"renameat2": written([2]int{0, 1}, [2]int{2, 3}),
		"link":      written([2]int{none, 0}, [2]int{none, 1}),
		"linkat":    written([2]int{0, 1}, [2]int{2, 3}),
		"symlink":   written([2]int{none, 1}),
		"symlinkat": written([2]int{1, 2}),
		"truncate":  written([2]int{none, 0}),
		"connect":   func(r *recorder, t *stop) { r.connect(t) },
		"sendto":    func(r *recorder, t *stop) { r.question(t, t.args[1], t.args[2]) },
		"sendmmsg":  func(r *recorder, t *stop) { r.message(t) },
		"sendmsg":   func(r *recorder, t *stop) { r.message(t) },
		"clone": func(r *recorder, t *stop) {
			const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
			if t.args[0]&newNamespaces != 0 {
				r.count(r.seen.Calls, namespaceClone)
			}
		},
	}
}

// namespaceClone stands for clone(2) with a flag of a new namespace among the calls.
const namespaceClone = "clone with namespaces"
