package initproc

import (
	"path"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// statx offsets, from struct statx of linux/stat.h.
const (
	statxBytes     = 256
	statxModeWord  = 0x18 // gid in the low half, then 16 bits of mode
	statxModeShift = 32
	statxIno       = 0x20
	statxRdev      = 0x80 // major, then minor, 32 bits each
	statxDev       = 0x88 // likewise
)

// openDev opens /dev of the container once. It is refused when it is a symlink (CVE-2026-41579).
func (s *createState) openDev(p *Program) Cell {
	if s.dev == 0 {
		s.dev = p.cell(None)
		planOpen(p, "open /dev", val(s.root), "dev", unix.O_PATH|unix.O_DIRECTORY, inRoot|unix.RESOLVE_NO_SYMLINKS).into(s.dev)
	}
	return s.dev
}

func planDevices(p *Program, s *createState) {
	for i := range s.Devices {
		planDevice(p, s, &s.Devices[i])
	}
	if !s.DevLinks {
		return
	}
	dev := s.openDev(p)
	for _, l := range [][2]string{
		{"/proc/self/fd", "fd"},
		{"/proc/self/fd/0", "stdin"},
		{"/proc/self/fd/1", "stdout"},
		{"/proc/self/fd/2", "stderr"},
		{"/proc/kcore", "core"},
		{"pts/ptmx", "ptmx"},
	} {
		if l[1] == "core" && !s.KcoreLink {
			continue
		}
		p.call("make link /dev/"+l[1], unix.SYS_SYMLINKAT, p.str(l[0]), val(dev), p.str(l[1])).ignore(unix.EEXIST)
	}
}

func planDevice(p *Program, s *createState, d *Device) {
	dir, base := path.Dir(d.Path), path.Base(d.Path)
	if dir == "/dev" {
		planDeviceIn(p, s.openDev(p), base, d)
		return
	}
	planMkdirs(p, s, "device "+d.Path, relative(dir), func(parent Cell) { planDeviceIn(p, parent, base, d) })
}

func planDeviceIn(p *Program, dir Cell, base string, d *Device) {
	what := "device " + d.Path
	if d.TreeFD != None {
		target := p.cell(None)
		planFile(p, what, dir, base, target)
		planMove(p, "mount "+what, imm(d.TreeFD), val(target), "")
		p.call("close mount point", unix.SYS_CLOSE, val(target))
		p.call("close mount", unix.SYS_CLOSE, imm(d.TreeFD))
		return
	}
	exists, done := &Label{}, &Label{}
	number := unix.Mkdev(d.Major, d.Minor)
	if d.Mode&unix.S_IFMT == unix.S_IFIFO {
		number = 0
	}
	p.call("make "+what, unix.SYS_MKNODAT, val(dir), p.str(base), imm64(uint64(d.Mode)), imm64(number)).
		orElse(exists, unix.EEXIST)
	if d.UID != 0 || d.GID != 0 {
		p.call("set owner of "+what, unix.SYS_FCHOWNAT, val(dir), p.str(base), imm(int(d.UID)), imm(int(d.GID)),
			imm(unix.AT_SYMLINK_NOFOLLOW))
	}
	p.jump(done)
	// What the image has at this place must be the very device; it is not followed, chowned or opened.
	p.place(exists)
	st := planStat(p, what, dir, base)
	p.check(what+" exists and is another file", st.plus(statxModeWord), unix.S_IFMT<<statxModeShift,
		uint64(d.Mode&unix.S_IFMT)<<statxModeShift, unix.EEXIST)
	if number != 0 {
		p.check(what+" exists and is another device", st.plus(statxRdev), ^uint64(0),
			uint64(d.Major)|uint64(d.Minor)<<32, unix.EEXIST)
	}
	p.place(done)
}

// planStat appends statx(2) of a directory entry that is not followed.
func planStat(p *Program, what string, dir Cell, base string) Arg {
	st := p.scratch(statxBytes)
	p.call("stat "+what, unix.SYS_STATX, val(dir), p.str(base), imm(unix.AT_SYMLINK_NOFOLLOW),
		imm(unix.STATX_BASIC_STATS), st)
	return st
}

// planFile opens a regular file to mount over, making it if it is missing. A symlink is refused (CVE-2025-52565,
// crun CVE-2026-88264).
func planFile(p *Program, what string, dir Cell, base string, into Cell) {
	exists := &Label{}
	planOpenMode(p, "make "+what, val(dir), base, unix.O_RDONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o644,
		unix.RESOLVE_BENEATH).into(into).orElse(exists, unix.EEXIST)
	p.call("close "+what, unix.SYS_CLOSE, val(into))
	p.place(exists)
	// Without O_NOFOLLOW: with it and O_PATH a symlink is not refused but opened itself, and mounted over.
	planOpen(p, "open "+what, val(dir), base, unix.O_PATH, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS).into(into)
}

// planConsole makes the terminal of the first process, mounts it on /dev/console and sends its master away.
func planConsole(p *Program, s *createState) {
	if s.Terminal {
		devpts := s.devpts
		if devpts == 0 {
			devpts = p.cell(None)
			planOpen(p, "open /dev/pts", val(s.root), "dev/pts", unix.O_PATH|unix.O_DIRECTORY, inRoot|unix.RESOLVE_NO_SYMLINKS).into(devpts)
		}
		peer := planTerminal(p, &s.Process, devpts)
		tree, target := p.cell(None), p.cell(None)
		p.call("open console", unix.SYS_OPEN_TREE, val(peer), p.str(""),
			imm(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)).into(tree)
		planFile(p, "/dev/console", s.openDev(p), "console", target)
		planMove(p, "mount /dev/console", val(tree), val(target), "")
		p.call("close mount point", unix.SYS_CLOSE, val(target))
		p.call("close mount", unix.SYS_CLOSE, val(tree))
		planStdio(p, peer)
	}
	if s.devpts != 0 {
		p.call("close devpts", unix.SYS_CLOSE, val(s.devpts))
	}
	if s.dev != 0 {
		p.call("close /dev", unix.SYS_CLOSE, val(s.dev))
	}
}

// planExecConsole makes a terminal in the container's devpts, which the container may have tampered with.
func planExecConsole(p *Program, in *Process) {
	if !in.Terminal {
		return
	}
	devpts := p.cell(None)
	planOpen(p, "open /dev/pts", imm(unix.AT_FDCWD), "/dev/pts", unix.O_PATH|unix.O_DIRECTORY,
		unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS).into(devpts)
	planStdio(p, planTerminal(p, in, devpts))
	p.call("close devpts", unix.SYS_CLOSE, val(devpts))
}

// planTerminal opens a new terminal through the ptmx of devpts and sends its master to the console socket.
func planTerminal(p *Program, in *Process, devpts Cell) (peer Cell) {
	master, peer := p.cell(None), p.cell(None)
	st := planStat(p, "terminal multiplexer", devpts, "ptmx")
	p.check("/dev/pts/ptmx is not a terminal multiplexer", st.plus(statxRdev), ^uint64(0), 5|2<<32, unix.ENODEV)
	planOpen(p, "open terminal", val(devpts), "ptmx", unix.O_RDWR|unix.O_NOCTTY, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS).into(master)
	p.call("unlock terminal", unix.SYS_IOCTL, val(master), imm(unix.TIOCSPTLCK), p.words(0))
	// CVE-2025-52565: the peer comes from the kernel, not from a path like /dev/pts/0 that the image can swap.
	p.call("open terminal's other end", unix.SYS_IOCTL, val(master), imm(unix.TIOCGPTPEER),
		imm(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)).into(peer)
	if in.Rows != 0 || in.Columns != 0 {
		size := p.words(uint64(in.Rows) | uint64(in.Columns)<<16)
		p.call("set process.consoleSize", unix.SYS_IOCTL, val(peer), imm(unix.TIOCSWINSZ), size)
	}
	p.call("set owner of terminal", unix.SYS_FCHOWN, val(peer), imm(int(in.UID)), imm(-1)).ignore(unix.EROFS, unix.EINVAL, unix.EPERM)
	const name = "/dev/pts/ptmx"
	planSendFD(p, "send terminal to console socket", in.ConsoleFD, master, p.bytes([]byte(name)), len(name))
	p.call("close terminal", unix.SYS_CLOSE, val(master))
	p.call("close console socket", unix.SYS_CLOSE, imm(in.ConsoleFD))
	return peer
}

// planStdio makes the terminal the three standard descriptors and the controlling terminal of the new session.
func planStdio(p *Program, peer Cell) {
	for fd := range 3 {
		p.call("attach terminal", unix.SYS_DUP3, val(peer), imm(fd), imm(0))
	}
	p.call("close terminal", unix.SYS_CLOSE, val(peer))
	p.call("set controlling terminal", unix.SYS_IOCTL, imm(0), imm(unix.TIOCSCTTY), imm(0))
}

// planSendFD appends sendmsg(2) of the descriptor in fd with some bytes. struct msghdr is as in linux/socket.h, 64 bit.
func planSendFD(p *Program, what string, socket int, fd Cell, data Arg, n int) {
	const cmsgBytes, cmsgSpace = 20, 24
	iov := p.scratch(16)
	p.point(iov, data)
	p.put64(iov.plus(8), uint64(n)) //nolint:gosec // a length
	control := p.scratch(cmsgSpace)
	p.put64(control, cmsgBytes)
	p.put64(control.plus(8), uint64(unix.SOL_SOCKET)|uint64(unix.SCM_RIGHTS)<<32)
	msg := p.scratch(56)
	p.point(msg.plus(16), iov)
	p.put64(msg.plus(24), 1)
	p.point(msg.plus(32), control)
	p.put64(msg.plus(40), cmsgSpace)
	// The descriptor's number is known only in the child: copy it into the message.
	p.call(what+": prepare", unix.SYS_FCNTL, val(fd), imm(unix.F_DUPFD_CLOEXEC), imm(0)).
		into(Cell(control.plus(16).value)) //nolint:gosec // offsets in the writable data are small
	p.call(what, unix.SYS_SENDMSG, imm(socket), msg, imm(unix.MSG_NOSIGNAL))
	p.call(what+": finish", unix.SYS_CLOSE, Arg{kind: argCell, value: control.plus(16).value})
}

func planMasks(p *Program, s *createState) {
	if len(s.MaskedPaths) == 0 {
		return
	}
	dir := p.cell(None)
	// nr_inodes=2: the root and nothing more; 1 fails on old kernels (runc#5348).
	options := []rootfs.Option{{Key: "size", Value: "0"}, {Key: "nr_blocks", Value: "1"}, {Key: "nr_inodes", Value: "2"}, {Key: "mode", Value: "0755"}}
	if s.MountLabel != "" {
		options = append(options, rootfs.Option{Key: "context", Value: s.MountLabel})
	}
	planFilesystem(p, "empty directory for linux.maskedPaths", "tmpfs", options,
		unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, dir)
	for _, masked := range s.MaskedPaths {
		planMask(p, s, masked, dir)
	}
	p.call("close mask", unix.SYS_CLOSE, val(dir))
	p.call("close mask", unix.SYS_CLOSE, imm(s.NullFD))
}

// planMask hides a path: a file under the host's /dev/null (never the image's, CVE-2025-31133), a directory under an
// empty one. A path that does not exist needs no mask.
func planMask(p *Program, s *createState, masked string, dir Cell) {
	what := "mask " + masked
	target, copied := p.cell(None), p.cell(None)
	skip, isDir, last, closeCopy := &Label{}, &Label{}, &Label{}, &Label{}
	planOpen(p, what, val(s.root), relative(masked), unix.O_PATH, inRoot).into(target).
		orElse(skip, unix.ENOENT, unix.ENOTDIR, unix.EACCES)
	clone := func(tree Arg) op {
		return p.call(what+": copy", unix.SYS_OPEN_TREE, tree, p.str(""),
			imm(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)).into(copied)
	}
	st := p.scratch(statxBytes)
	p.call(what+": stat", unix.SYS_STATX, val(target), p.str(""), imm(unix.AT_EMPTY_PATH), imm(unix.STATX_BASIC_STATS), st)
	p.check(what+": directory?", st.plus(statxModeWord), unix.S_IFMT<<statxModeShift, unix.S_IFDIR<<statxModeShift, unix.EISDIR).
		then(isDir).orElse(nil)
	// Linux < 6.15 refuses to copy a detached mount (EINVAL): its first use attaches it, later ones copy that.
	original := &Label{}
	clone(imm(s.NullFD)).orElse(original, unix.EINVAL)
	planMove(p, what, val(copied), val(target), "").then(closeCopy)
	p.place(original)
	planMove(p, what, imm(s.NullFD), val(target), "").then(last)
	p.place(isDir)
	original = &Label{}
	clone(val(dir)).orElse(original, unix.EINVAL)
	planMove(p, what, val(copied), val(target), "").then(closeCopy)
	p.place(original)
	planMove(p, what, val(dir), val(target), "").then(last)
	p.place(closeCopy)
	p.call("close mask", unix.SYS_CLOSE, val(copied))
	p.place(last)
	p.call("close mount point", unix.SYS_CLOSE, val(target))
	p.place(skip)
}

func planReadonlyPaths(p *Program, s *createState) {
	target, tree := p.cell(None), p.cell(None)
	for _, ro := range s.ReadonlyPaths {
		what := "make " + ro + " read-only"
		skip := &Label{}
		planOpen(p, what, val(s.root), relative(ro), unix.O_PATH, inRoot).into(target).
			orElse(skip, unix.ENOENT, unix.ENOTDIR, unix.EACCES)
		p.call(what+": copy", unix.SYS_OPEN_TREE, val(target), p.str(""),
			imm(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)).into(tree)
		planSetattr(p, what, val(tree), "", true, rootfs.Attr{Set: unix.MOUNT_ATTR_RDONLY}, 0)
		planMove(p, what, val(tree), val(target), "")
		p.call("close mount", unix.SYS_CLOSE, val(tree))
		p.call("close mount point", unix.SYS_CLOSE, val(target))
		p.place(skip)
	}
}
