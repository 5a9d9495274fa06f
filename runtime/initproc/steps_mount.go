package initproc

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

const (
	fsconfigSetFlag   = 0
	fsconfigSetString = 1
	fsconfigCreate    = 6

	inRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
)

func planRoot(p *Program, s *createState) {
	if s.HostMounts {
		// The host's own "/" is left alone. A slave: what is mounted below appears in this tree, and not at its origin, too.
		planSetattr(p, "make root slave", val(s.root), "", true, rootfs.Attr{}, unix.MS_SLAVE)
		planMove(p, "attach root file system", val(s.root), imm(unix.AT_FDCWD), s.RootPath)
		return
	}
	planSetattr(p, "set propagation of /", imm(unix.AT_FDCWD), "/", true, rootfs.Attr{}, s.outerPropagation())
	// pivot_root refuses a parent that is shared.
	planSetattr(p, "make / private", imm(unix.AT_FDCWD), "/", false, rootfs.Attr{}, unix.MS_PRIVATE)
	// The detached tree is a peer of the host's mounts until it is told otherwise.
	if s.outerPropagation() == unix.MS_SHARED {
		planSetattr(p, "make root slave", val(s.root), "", false, rootfs.Attr{}, unix.MS_SLAVE)
	} else {
		planSetattr(p, "set propagation of root", val(s.root), "", true, rootfs.Attr{}, s.outerPropagation())
	}
	// Its own path is only a place in this private namespace: whatever the look-up meets, what is attached is the tree
	// that the host opened. Not over "/": createContainer hooks still need the host's. With shared propagation the parent
	// at the path may be shared, which pivot_root refuses, so there "/" it is.
	at := s.RootPath
	if s.outerPropagation() == unix.MS_SHARED {
		at = "/"
	}
	planMove(p, "attach root file system", val(s.root), imm(unix.AT_FDCWD), at)
}

// outerPropagation is how the container's mounts relate to the host's while it is set up.
func (c *Create) outerPropagation() uint64 {
	if c.Propagation == unix.MS_UNBINDABLE {
		return unix.MS_PRIVATE
	}
	return c.Propagation
}

func planMounts(p *Program, s *createState) {
	for i := range s.Mounts {
		if !s.Mounts[i].Cgroup {
			planMount(p, s, &s.Mounts[i])
		}
	}
}

func planMount(p *Program, s *createState, m *Mount) {
	tree := p.cell(m.TreeFD)
	if m.TreeFD == None {
		planFilesystem(p, "mount "+m.Type+" on "+m.Destination, m.Type, withSource(m), m.Attr.Set, tree)
		if m.Type == "mqueue" && s.MountLabel != "" {
			planLabelQueues(p, m, tree, s.MountLabel)
		}
	}
	s.remember(m, tree)
	if m.Reopen != "" {
		planReopen(p, m, tree)
	}
	if m.Bind {
		planBindPropagation(p, s, m, tree)
	}
	if m.TreeFD != None && m.Attr != (rootfs.Attr{}) {
		planSetattr(p, "set options of mount "+m.Destination, val(tree), "", false, m.Attr, 0)
	}
	if m.RecAttr != (rootfs.Attr{}) {
		planSetattr(p, "set recursive options of mount "+m.Destination, val(tree), "", true, m.RecAttr, 0)
	}
	target := p.cell(None)
	planTarget(p, s, m, target)
	planMove(p, "mount "+m.describe()+" on "+m.Destination, val(tree), val(target), "")
	if m.Propagation != 0 && !m.Bind {
		planSetattr(p, "set propagation of "+m.Destination, val(tree), "", m.PropagationRec, rootfs.Attr{}, m.Propagation)
	}
	p.call("close mount point", unix.SYS_CLOSE, val(target))
	if tree != s.proc && tree != s.devpts {
		p.call("close mount", unix.SYS_CLOSE, val(tree))
	}
}

// planLabelQueues gives message queues the label of the container's files: they take none as an option of the mount. The
// attribute is written through the root of the new instance, so no path is involved. Source: setxattr(2).
func planLabelQueues(p *Program, m *Mount, tree Cell, label string) {
	what, root := "set linux.mountLabel of "+m.Destination, p.cell(None)
	planOpen(p, what, val(tree), ".", unix.O_RDONLY|unix.O_DIRECTORY, unix.RESOLVE_BENEATH).into(root)
	p.call(what, unix.SYS_FSETXATTR, val(root), p.str("security.selinux"), p.str(label), imm(len(label)), imm(0))
	p.call("close root of message queues", unix.SYS_CLOSE, val(root))
}

// planReopen replaces the tree that the host has opened by one of the child's own. Linux 6.8 and newer list the mounts of
// a namespace by age (2eea9ce4310d "mounts: keep list of mounts in an rbtree"), and programs that expect the order of
// the specification there find the binds first otherwise. If the path leads to another file by now, or nowhere, the
// host's tree stays: that is the one that was asked for.
func planReopen(p *Program, m *Mount, tree Cell) {
	keep, drop, own := &Label{}, &Label{}, p.cell(None)
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if m.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	what := "open source of " + m.Destination + " again"
	p.call(what, unix.SYS_OPEN_TREE, imm(unix.AT_FDCWD), p.str(m.Reopen), imm(flags)).into(own).orElse(keep)
	st := p.scratch(statxBytes)
	p.call(what+": stat", unix.SYS_STATX, val(own), p.str(""), imm(unix.AT_EMPTY_PATH), imm(unix.STATX_BASIC_STATS), st)
	p.check(what+": the same file?", st.plus(statxIno), ^uint64(0), m.Ino, unix.ESTALE).orElse(drop)
	p.check(what+": the same file system?", st.plus(statxDev), ^uint64(0),
		uint64(unix.Major(m.Dev))|uint64(unix.Minor(m.Dev))<<32, unix.ESTALE).orElse(drop)
	p.call("take the tree", unix.SYS_DUP3, val(own), val(tree), imm(unix.O_CLOEXEC))
	p.place(drop)
	p.call("close the other tree", unix.SYS_CLOSE, val(own))
	p.place(keep)
}

// remember keeps the instances of proc and devpts that this child made: they can't be faked by the image.
func (s *createState) remember(m *Mount, tree Cell) {
	if m.TreeFD != None {
		return
	}
	switch {
	case m.Type == "proc" && m.Destination == "/proc" && m.Attr.Set&unix.MOUNT_ATTR_RDONLY == 0:
		s.proc = tree
	case m.Type == "devpts" && m.Destination == "/dev/pts":
		s.devpts = tree
	}
}

func (m *Mount) describe() string {
	if m.Bind {
		return m.Source
	}
	return m.Type
}

func withSource(m *Mount) []rootfs.Option {
	if m.Source == "" {
		return m.Options
	}
	return append([]rootfs.Option{{Key: "source", Value: m.Source}}, m.Options...)
}

// planBindPropagation gives a bind mount the relation that it would have if it had been made inside: first that of
// the root, then the one that its own options ask for.
func planBindPropagation(p *Program, s *createState, m *Mount, tree Cell) {
	what := "set propagation of " + m.Destination
	if outer := s.outerPropagation(); outer != unix.MS_SHARED {
		planSetattr(p, what, val(tree), "", true, rootfs.Attr{}, outer)
	}
	if m.Propagation != 0 {
		planSetattr(p, what, val(tree), "", m.PropagationRec, rootfs.Attr{}, m.Propagation)
	}
}

// planFilesystem makes a new, detached file system instance.
func planFilesystem(p *Program, what, fstype string, options []rootfs.Option, attr uint64, into Cell) {
	fd := p.cell(None)
	p.call(what+": fsopen", unix.SYS_FSOPEN, p.str(fstype), imm(unix.FSOPEN_CLOEXEC)).into(fd)
	for _, o := range options {
		call := what + ": option " + o.Key
		if o.Flag {
			p.call(call, unix.SYS_FSCONFIG, val(fd), imm(fsconfigSetFlag), p.str(o.Key), imm(0), imm(0))
			continue
		}
		p.call(call, unix.SYS_FSCONFIG, val(fd), imm(fsconfigSetString), p.str(o.Key), p.str(o.Value), imm(0))
	}
	p.call(what, unix.SYS_FSCONFIG, val(fd), imm(fsconfigCreate), imm(0), imm(0), imm(0))
	p.call(what+": fsmount", unix.SYS_FSMOUNT, val(fd), imm(unix.FSMOUNT_CLOEXEC), imm64(attr)).into(into)
	p.call("close file system context", unix.SYS_CLOSE, val(fd))
}

// planSetattr appends mount_setattr(2) for a mount: the path below dir, or dir itself when the path is empty.
func planSetattr(p *Program, what string, dir Arg, at string, recursive bool, a rootfs.Attr, propagation uint64) {
	flags := 0
	if at == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	attr := p.words(a.Set, a.Clear, propagation, 0)
	p.call(what, unix.SYS_MOUNT_SETATTR, dir, p.str(at), imm(flags), attr, imm(32))
}

// planMove attaches the mount tree at the at below dir, or at dir itself when the at is empty.
func planMove(p *Program, what string, tree, dir Arg, at string) op {
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH
	if at == "" {
		flags |= unix.MOVE_MOUNT_T_EMPTY_PATH
	}
	return p.call(what, unix.SYS_MOVE_MOUNT, tree, p.str(""), dir, p.str(at), imm(flags))
}

// planTarget opens the mount point of m, and makes it where it is missing.
func planTarget(p *Program, s *createState, m *Mount, into Cell) {
	what := "open mount point " + m.Destination
	resolve := uint64(inRoot)
	if m.Type == "proc" || m.Type == "sysfs" {
		// CVE-2023-27561, CVE-2023-28642: an image whose /proc is a symlink would move the masks elsewhere.
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	defer planOutsideProc(p, m, into)
	if m.Exists {
		planOpen(p, what, val(s.root), relative(m.Destination), unix.O_PATH, resolve).into(into)
		return
	}
	done := &Label{}
	target := relative(m.Target)
	planOpen(p, what, val(s.root), target, unix.O_PATH, resolve).into(into).then(done).orElse(nil, unix.ENOENT)
	planMkdirs(p, s, m.Destination, path.Dir(target), func(parent Cell) {
		base := path.Base(target)
		if !m.IsFile {
			p.call("make mount point "+m.Destination, unix.SYS_MKDIRAT, val(parent), p.str(base), imm(0o755)).ignore(unix.EEXIST)
			return
		}
		fd := p.cell(None)
		made := &Label{}
		planOpenMode(p, "make mount point "+m.Destination, val(parent), base,
			unix.O_RDONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o755, unix.RESOLVE_BENEATH).
			into(fd).orElse(made, unix.EEXIST)
		p.call("close mount point", unix.SYS_CLOSE, val(fd))
		p.place(made)
	})
	planOpen(p, what, val(s.root), target, unix.O_PATH, resolve).into(into)
	p.place(done)
}

// planOutsideProc refuses a mount point in proc to a mount that does not name one: a symlink of the image, or of another
// mount, has led there. What is mounted over proc hides what is masked, and answers in the kernel's place
// (CVE-2019-16884, TestAttack_CVE_2019_16884_LinkIntoProc).
func planOutsideProc(p *Program, m *Mount, target Cell) {
	if m.Destination == "/proc" || strings.HasPrefix(m.Destination, "/proc/") {
		return
	}
	const statfsBytes = 120
	outside, fs := &Label{}, p.scratch(statfsBytes)
	p.call("identify mount point "+m.Destination, unix.SYS_FSTATFS, val(target), fs)
	p.check("proc?", fs, ^uint64(0), unix.PROC_SUPER_MAGIC, unix.EXDEV).orElse(outside)
	const never = 1 // of no bit at all
	p.check("mount point "+m.Destination+" leads into /proc", fs, 0, never, unix.EXDEV)
	p.place(outside)
}

// planMkdirs opens dir beneath the root, making each missing directory by handle (CVE-2024-45310: mkdir -p by path
// could be led out of the root), and hands the descriptor of the last one to use.
func planMkdirs(p *Program, s *createState, what, dir string, use func(parent Cell)) {
	parent := p.cell(None)
	p.call("open root", unix.SYS_FCNTL, val(s.root), imm(unix.F_DUPFD_CLOEXEC), imm(3)).into(parent)
	prefix := ""
	for name := range strings.SplitSeq(dir, "/") {
		if name == "." || name == "" {
			continue
		}
		prefix = path.Join(prefix, name)
		next := p.cell(None)
		have := &Label{}
		open := func() op {
			return planOpen(p, "open directory /"+prefix+" for "+what, val(s.root), prefix, unix.O_PATH|unix.O_DIRECTORY, inRoot).into(next)
		}
		open().then(have).orElse(nil, unix.ENOENT)
		// EEXIST: another container that shares the root was quicker (runc#4543).
		p.call("make directory /"+prefix+" for "+what, unix.SYS_MKDIRAT, val(parent), p.str(name), imm(0o755)).ignore(unix.EEXIST)
		open()
		p.place(have)
		p.call("close directory", unix.SYS_CLOSE, val(parent))
		parent = next
	}
	use(parent)
	p.call("close directory", unix.SYS_CLOSE, val(parent))
}

// planMakeCwd makes a missing process.cwd, as runc does.
func planMakeCwd(p *Program, s *createState) {
	if s.Cwd == "/" {
		return
	}
	have, fd := &Label{}, p.cell(None)
	cwd := relative(s.Cwd)
	planOpen(p, "look up process.cwd", val(s.root), cwd, unix.O_PATH|unix.O_DIRECTORY, inRoot).into(fd).then(have).
		orElse(nil, unix.ENOENT)
	planMkdirs(p, s, "process.cwd", cwd, func(parent Cell) {
		p.call("open process.cwd", unix.SYS_FCNTL, val(parent), imm(unix.F_DUPFD_CLOEXEC), imm(3)).into(fd)
	})
	p.place(have)
	p.call("close process.cwd", unix.SYS_CLOSE, val(fd))
}

// planExecRoot enters the root directory of a container whose mount namespace is the host's: without it "/" would be the
// host's, too.
func planExecRoot(p *Program, s *execState) {
	if s.RootFD == 0 {
		return
	}
	p.call("enter root", unix.SYS_FCHDIR, imm(s.RootFD))
	p.call("chroot", unix.SYS_CHROOT, p.str("."))
}

// planViews lays the views of an exec over the container's mounts, in a mount namespace that ends with its processes.
func planViews(p *Program, s *execState) {
	if len(s.Views) == 0 {
		return
	}
	p.call("create mount namespace", unix.SYS_UNSHARE, imm(unix.CLONE_NEWNS))
	// What the container mounts later still arrives; nothing of this namespace gets out.
	planSetattr(p, "set propagation of /", imm(unix.AT_FDCWD), "/", true, rootfs.Attr{}, unix.MS_SLAVE)
	target := p.cell(None)
	for _, v := range s.Views {
		planOpen(p, "open workspace "+v.Destination, imm(unix.AT_FDCWD), relative(v.Destination), unix.O_PATH, inRoot).into(target)
		planMove(p, "lay the transaction over "+v.Destination, imm(v.TreeFD), val(target), "")
		p.call("close workspace", unix.SYS_CLOSE, val(target))
	}
}

func relative(p string) string {
	p = strings.TrimPrefix(p, "/")
	if p == "" {
		return "."
	}
	return p
}

func planPivot(p *Program, s *createState) {
	if s.ReadonlyRoot {
		planSetattr(p, "make root read-only", val(s.root), "", false, rootfs.Attr{Set: unix.MOUNT_ATTR_RDONLY}, 0)
	}
	p.call("enter root", unix.SYS_FCHDIR, val(s.root))
	if s.HostMounts {
		p.call("chroot", unix.SYS_CHROOT, p.str("."))
		p.call("close root", unix.SYS_CLOSE, val(s.root))
		return
	}
	if s.NoPivot {
		// Over "/", not only into the root: with CAP_SYS_CHROOT a second chroot gets out of the first, and what it then
		// meets must not be the host's root (TestAttack_NoPivotChrootEscape). With shared propagation it is there already.
		if s.outerPropagation() != unix.MS_SHARED {
			planMove(p, "move root over /", val(s.root), imm(unix.AT_FDCWD), "/")
		}
		p.call("chroot", unix.SYS_CHROOT, p.str("."))
	} else {
		old := p.cell(None)
		planOpen(p, "open old root", imm(unix.AT_FDCWD), "/", unix.O_PATH|unix.O_DIRECTORY, 0).into(old)
		p.call("pivot_root", unix.SYS_PIVOT_ROOT, p.str("."), p.str("."))
		p.call("enter old root", unix.SYS_FCHDIR, val(old))
		// Otherwise the unmount below would reach the host's mounts.
		planSetattr(p, "make old root slave", val(old), "", true, rootfs.Attr{}, unix.MS_SLAVE)
		p.call("detach old root", unix.SYS_UMOUNT2, p.str("."), imm(unix.MNT_DETACH))
		p.call("close old root", unix.SYS_CLOSE, val(old))
	}
	p.call("enter /", unix.SYS_CHDIR, p.str("/"))
	if s.Propagation != unix.MS_SLAVE && s.Propagation != unix.MS_PRIVATE {
		planSetattr(p, "set linux.rootfsPropagation", imm(unix.AT_FDCWD), "/", s.PropagationRec, rootfs.Attr{}, s.Propagation)
	}
	p.call("close root", unix.SYS_CLOSE, val(s.root))
}
