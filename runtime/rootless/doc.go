// Package rootless lets an ordinary user run containers: it makes the process root of a user namespace that belongs to
// that user, and says where such a user keeps state and data.
//
// Data in: the caller's ids, /etc/subuid and /etc/subgid. Data out: a process that goes on in its place, as uid 0 of the
// namespace, which the host knows as the user and nobody else. From there on everything is as for root, and the kernel
// decides what such a root may do.
//
// # The way in
//
//	agentsafe, agentsafectl (uid 1000)
//	   │  clone a process into a new user namespace, map ids (newuidmap, newgidmap), open the namespace, end it
//	   │  execve: a table of system calls (initproc.Enter): setns, unshare, execve
//	   ▼
//	the same program, the same process number, uid 0 of the namespace ──▶ container, in a user namespace below
//
// Nothing stays behind in between: no parent that would have to pass on signals, and no daemon. The namespace lives in
// the processes of its container. A later command for that container joins the same namespace, which it finds above the
// container's own; for one that is gone, a new one with the same ids does.
//
// # Ids
//
// Uid 0 of the namespace is the user. From 1 on come the user's subordinate ids, if the host lists some and has
// newuidmap and newgidmap. Without them one id is mapped, and the kernel then forbids setgroups(2): the groups that the
// user is in can't be given up.
//
// # What it refuses
//
// A state directory that somebody else owns or can write to, or that is a symlink. It asks no setuid program for
// anything but the ids that the host's administrator has listed for this user, and trusts no environment variable
// beyond what the caller could do anyway.
//
// Minimum kernel: 5.15, with user namespaces for ordinary users (/proc/sys/user/max_user_namespaces, and on Debian and
// Ubuntu kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns).
//
// Rejected: a parent that stays outside and waits (signals, terminals and pid files would be those of the wrong
// process); a pause process for each user, as Podman has it (something that stays and has to be found and ended); C
// code that runs before Go's runtime (cgo in the two programs that engines start).
package rootless
