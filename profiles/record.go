package profiles

import "slices"

// RecordAnnotation asks for a recording of a container, by a name that the host's administrator has released.
const RecordAnnotation = AnnotationPrefix + "record"

// tracedFiles are the calls whose arguments a recorder reads.
func tracedFiles() []string {
	return []string{
		"open", "openat", "openat2", "creat", "execve", "execveat", "mkdir", "mkdirat", "mknod", "mknodat", "rmdir", "unlink", "unlinkat",
		"rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "truncate", "connect", "sendto", "sendmmsg", "sendmsg", "clone",
	}
}

// RecordedCalls lists the calls that stop for a recorder, in the order of the messages of [RecordFilter]: first those
// whose arguments it reads, then those that the built-in list refuses.
func RecordedCalls() []string {
	_, refusedCalls := ListedCalls()
	return append(tracedFiles(), refusedCalls...)
}

// RecordFilter stops a task for [RecordedCalls] and for what no list knows, and lets all others pass. It refuses
// nothing, and loosens nothing where it stands beside other filters: the kernel takes the stricter answer, and where
// two are equally strict (an inner filter's SECCOMP_RET_TRACE) the call is one that those others let pass. Without a
// tracer a call that it stops for answers ENOSYS.
func RecordFilter(goarch string) SeccompFilter {
	list := RecordedCalls()
	allow := SeccompAction{Do: DoAllow}
	trace := func(message int) SeccompAction {
		return SeccompAction{Do: DoTrace, Errno: uint16(message)} //nolint:gosec // some hundred
	}
	allowed, _ := ListedCalls()
	pass := slices.DeleteFunc(allowed, func(n string) bool { return slices.Contains(list, n) })
	// Of some the built-in rules judge arguments; they are let through, since what those refuse is seldom what a run needs.
	pass = append(pass, "clone3", "personality", "socket", "socketpair")
	f := SeccompFilter{Name: "record", Arch: goarch, BadArch: allow, Default: trace(len(list))}
	f.Rules = append(f.Rules, SeccompRule{Names: pass, Action: allow})
	for i, name := range list {
		f.Rules = append(f.Rules, SeccompRule{Names: []string{name}, Action: trace(i)})
	}
	return f
}
