package initproc

import "golang.org/x/sys/unix"

// planCreateNull makes the container's null device the streams that are one. Where /dev is not the container's to furnish
// the streams stay what the host has handed over.
func planCreateNull(p *Program, s *createState) {
	if s.NullStdio == 0 || s.Terminal || len(s.Devices) == 0 {
		return
	}
	planNull(p, s.NullStdio, val(s.openDev(p)), "null")
}

// planExecNull is planCreateNull in a container that may have tampered with its /dev.
func planExecNull(p *Program, s *execState) {
	if s.NullStdio == 0 || s.Terminal {
		return
	}
	planNull(p, s.NullStdio, imm(unix.AT_FDCWD), "/dev/null")
}

// planNull opens a null device, makes sure that it is one, and puts it in the place of the streams. Whatever else is
// there is left alone: the host's own device, by a mount that protects its node, does as well.
func planNull(p *Program, streams uint, dir Arg, name string) {
	keep, drop, null := &Label{}, &Label{}, p.cell(None)
	// O_NONBLOCK: a FIFO in its place, or a file that somebody holds a lease on, would hold the process up for as long as
	// they like. Not planOpen, which goes on trying as long as the answer is EAGAIN.
	how := p.words(unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	p.call("open the container's /dev/null", unix.SYS_OPENAT2, dir, p.str(name), how, imm(24)).into(null).orElse(keep)
	st := p.scratch(statxBytes)
	p.call("stat the container's /dev/null", unix.SYS_STATX, val(null), p.str(""), imm(unix.AT_EMPTY_PATH),
		imm(unix.STATX_BASIC_STATS), st)
	p.check("a device?", st.plus(statxModeWord), unix.S_IFMT<<statxModeShift, unix.S_IFCHR<<statxModeShift, unix.ENODEV).orElse(drop)
	p.check("the null device?", st.plus(statxRdev), ^uint64(0), 1|3<<32, unix.ENODEV).orElse(drop)
	p.call("make the null device block", unix.SYS_FCNTL, val(null), imm(unix.F_SETFL), imm(unix.O_RDWR))
	for fd := range 3 {
		if streams&(1<<fd) != 0 {
			p.call("attach the null device", unix.SYS_DUP3, val(null), imm(fd), imm(0))
		}
	}
	p.place(drop)
	p.call("close the null device", unix.SYS_CLOSE, val(null))
	p.place(keep)
}
