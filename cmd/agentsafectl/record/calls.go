package record

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// call is a system call that the run stops for.
type call struct {
	name string
	// see looks at the arguments; nil for calls of which the name is all.
	see func(r *recorder, t *stop)
}

// none is for a path that is relative to the working directory, always.
const none = -1

// calls lists what the run stops for. The index is the message of SECCOMP_RET_TRACE.
func calls() []call {
	written := func(pairs ...[2]int) func(*recorder, *stop) {
		return func(r *recorder, t *stop) {
			for _, p := range pairs {
				r.file(t, p[0], p[1], kindWrite)
			}
		}
	}
	out := []call{
		{"open", func(r *recorder, t *stop) { r.open(t, none, 0, t.args[1]) }},
		{"openat", func(r *recorder, t *stop) { r.open(t, 0, 1, t.args[2]) }},
		{"openat2", func(r *recorder, t *stop) { r.open(t, 0, 1, t.word(t.args[2])) }},
		{"creat", written([2]int{none, 0})},
		{"execve", func(r *recorder, t *stop) { r.execute(t, none, 0) }},
		{"execveat", func(r *recorder, t *stop) { r.execute(t, 0, 1) }},
		{"mkdir", written([2]int{none, 0})},
		{"mkdirat", written([2]int{0, 1})},
		{"mknod", written([2]int{none, 0})},
		{"mknodat", written([2]int{0, 1})},
		{"rmdir", written([2]int{none, 0})},
		{"unlink", written([2]int{none, 0})},
		{"unlinkat", written([2]int{0, 1})},
		{"rename", written([2]int{none, 0}, [2]int{none, 1})},
		{"renameat", written([2]int{0, 1}, [2]int{2, 3})},
		{"renameat2", written([2]int{0, 1}, [2]int{2, 3})},
		{"link", written([2]int{none, 0}, [2]int{none, 1})},
		{"linkat", written([2]int{0, 1}, [2]int{2, 3})},
		{"symlink", written([2]int{none, 1})},
		{"symlinkat", written([2]int{1, 2})},
		{"truncate", written([2]int{none, 0})},
		{"connect", func(r *recorder, t *stop) { r.connect(t) }},
		{"sendto", func(r *recorder, t *stop) { r.question(t, t.args[1], t.args[2]) }},
		{"sendmmsg", func(r *recorder, t *stop) { r.message(t) }},
		{"sendmsg", func(r *recorder, t *stop) { r.message(t) }},
		{"clone", func(r *recorder, t *stop) {
			const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
			if t.args[0]&newNamespaces != 0 {
				r.seen.Calls["clone with namespaces"]++
			}
		}},
	}
	_, refused := profiles.ListedCalls()
	for _, name := range refused {
		out = append(out, call{name, func(r *recorder, _ *stop) { r.seen.Calls[name]++ }})
	}
	return out
}

// filter stops the run for the listed calls and for what no list knows, and lets all others pass.
func filter(arch string) profiles.SeccompFilter {
	list := calls()
	allow := profiles.SeccompAction{Do: profiles.DoAllow}
	f := profiles.SeccompFilter{
		Name: "record", Arch: arch, BadArch: allow, Default: profiles.SeccompAction{Do: profiles.DoTrace, Errno: uint16(len(list))},
	}
	allowed, _ := profiles.ListedCalls()
	own := make([]string, len(list))
	for i := range list {
		own[i] = list[i].name
	}
	pass := slices.DeleteFunc(slices.Clone(allowed), func(n string) bool { return slices.Contains(own, n) })
	f.Rules = append(f.Rules, profiles.SeccompRule{Names: append(pass, conditional()...), Action: allow})
	for i := range list {
		f.Rules = append(f.Rules, profiles.SeccompRule{
			Names: []string{list[i].name}, Action: profiles.SeccompAction{Do: profiles.DoTrace, Errno: uint16(i)}, //nolint:gosec // a few
		})
	}
	return f
}

// conditional are calls of which the built-in rules judge arguments; they are let through, since what they refuse is
// seldom what a run needs.
func conditional() []string {
	return []string{"clone3", "personality", "socket", "socketpair"}
}
