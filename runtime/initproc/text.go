package initproc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// String prints the program, one operation a line, grouped by step: what a child will do, for people and golden files.
func (p *Program) String() string {
	var b strings.Builder
	step := ""
	for i := range p.meta {
		o := op{p, i}
		if m := p.meta[i]; m.step != step {
			step = m.step
			fmt.Fprintf(&b, "# %s\n", step)
		}
		fmt.Fprintf(&b, "%4d  %s(", i, o.name())
		for n := range o.operands() {
			if n > 0 {
				b.WriteString(", ")
			}
			b.WriteString(o.describe(n))
		}
		b.WriteString(")")
		o.describeFlow(&b)
		fmt.Fprintf(&b, "  ; %s\n", p.meta[i].what)
	}
	return b.String()
}

func (o op) describeFlow(b *strings.Builder) {
	raw, m := o.bytes(), o.p.meta[o.i]
	if dst := binary.NativeEndian.Uint64(raw[offDst:]); dst != 0 {
		fmt.Fprintf(b, " -> c%d", dst-rwBase)
	}
	if raw[offFlags]&flagExpect != 0 {
		fmt.Fprintf(b, " expect %d", int64(binary.NativeEndian.Uint64(raw[offWant:]))) //nolint:gosec // the bits
	}
	if m.ok != nil {
		fmt.Fprintf(b, " then %d", m.ok.at)
	}
	switch raw[offTolerate] {
	case 0:
	case anyErrno:
		fmt.Fprintf(b, " else %d", m.other.index(o.i+1))
	default:
		var names []string
		for _, e := range raw[offTolerate:] {
			if e != 0 {
				names = append(names, unix.ErrnoName(unix.Errno(e)))
			}
		}
		fmt.Fprintf(b, " on %s %d", strings.Join(names, ","), m.other.index(o.i+1))
	}
}

// arg decodes argument n.
func (o op) arg(n int) Arg {
	raw := o.bytes()
	v := binary.NativeEndian.Uint64(raw[offArgs+8*n:])
	switch {
	case raw[offCells]&(1<<n) != 0:
		return Arg{kind: argCell, value: v - rwBase}
	case v >= rwBase && v < rwBase+uint64(len(o.p.rw)):
		return Arg{kind: argRW, value: v - rwBase}
	case v >= roBase && v < roBase+uint64(len(o.p.ro)):
		return Arg{kind: argRO, value: v - roBase}
	default:
		return Arg{value: v}
	}
}

// operands counts the arguments up to the last that is not zero.
func (o op) operands() int {
	n := 6
	for n > 0 && o.arg(n-1) == (Arg{}) {
		n--
	}
	return n
}

func (o op) name() string {
	nr := int64(binary.NativeEndian.Uint64(o.bytes())) //nolint:gosec // the bits
	if nr == opCheck {
		return "check"
	}
	if name, ok := callNames()[uintptr(nr)]; ok { //nolint:gosec // a system call number
		return name
	}
	return fmt.Sprintf("syscall_%d", nr)
}

// callNames are the system calls that steps use.
func callNames() map[uintptr]string {
	return map[uintptr]string{
		unix.SYS_ACCEPT4: "accept4", unix.SYS_CAPSET: "capset", unix.SYS_CHDIR: "chdir", unix.SYS_CHROOT: "chroot",
		unix.SYS_CLONE: "clone", unix.SYS_EXIT_GROUP: "exit_group",
		unix.SYS_CLOSE: "close", unix.SYS_CLOSE_RANGE: "close_range", unix.SYS_DUP3: "dup3", unix.SYS_EXECVE: "execve",
		unix.SYS_FACCESSAT2: "faccessat2", unix.SYS_FCHDIR: "fchdir", unix.SYS_FCHOWN: "fchown",
		unix.SYS_FCHOWNAT: "fchownat", unix.SYS_FCNTL: "fcntl", unix.SYS_FSCONFIG: "fsconfig",
		unix.SYS_FSMOUNT: "fsmount", unix.SYS_FSETXATTR: "fsetxattr", unix.SYS_FSOPEN: "fsopen", unix.SYS_GETCWD: "getcwd", unix.SYS_IOCTL: "ioctl",
		unix.SYS_IOPRIO_SET: "ioprio_set", unix.SYS_KEYCTL: "keyctl",
		unix.SYS_LANDLOCK_ADD_RULE: "landlock_add_rule", unix.SYS_LANDLOCK_CREATE_RULESET: "landlock_create_ruleset",
		unix.SYS_LANDLOCK_RESTRICT_SELF: "landlock_restrict_self", unix.SYS_MKDIRAT: "mkdirat",
		unix.SYS_MKNODAT: "mknodat", unix.SYS_MOUNT_SETATTR: "mount_setattr", unix.SYS_MOVE_MOUNT: "move_mount",
		unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_OPEN_TREE: "open_tree",
		unix.SYS_PERSONALITY: "personality", unix.SYS_PIVOT_ROOT: "pivot_root", unix.SYS_PRCTL: "prctl",
		unix.SYS_PRLIMIT64: "prlimit64", unix.SYS_READ: "read", unix.SYS_SCHED_SETAFFINITY: "sched_setaffinity",
		unix.SYS_SCHED_SETATTR: "sched_setattr", unix.SYS_SECCOMP: "seccomp", unix.SYS_SENDMSG: "sendmsg",
		unix.SYS_SETDOMAINNAME: "setdomainname", unix.SYS_SETGROUPS: "setgroups", unix.SYS_SETHOSTNAME: "sethostname",
		unix.SYS_SETNS: "setns", unix.SYS_SETRESGID: "setresgid", unix.SYS_SETRESUID: "setresuid",
		unix.SYS_SETSID: "setsid", unix.SYS_STATX: "statx", unix.SYS_FSTATFS: "fstatfs", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_UMASK: "umask",
		unix.SYS_UMOUNT2: "umount2", unix.SYS_UNSHARE: "unshare", unix.SYS_WRITE: "write",
	}
}

// describe prints argument n. Structures that decide what is opened, mounted or granted are printed word by word, so
// that a change of a flag shows in a golden file.
func (o op) describe(n int) string {
	words := 0
	switch name := o.name(); {
	case name == "openat2" && n == 2, name == "mount_setattr" && n == 3, name == "landlock_create_ruleset" && n == 0,
		name == "capset" && n == 1:
		words = 3
	case name == "prlimit64" && n == 2:
		words = 2
	}
	a := o.arg(n)
	if words == 0 || a.kind != argRO || a.value+uint64(8*words) > uint64(len(o.p.ro)) {
		return o.p.describe(a)
	}
	var list []string
	for i := range words {
		list = append(list, fmt.Sprintf("%#x", binary.NativeEndian.Uint64(o.p.ro[a.value+uint64(8*i):]))) //nolint:gosec // not negative
	}
	return "{" + strings.Join(list, " ") + "}"
}

// describe prints an argument: strings as such, other data by its place only.
func (p *Program) describe(a Arg) string {
	switch a.kind {
	case argCell:
		return fmt.Sprintf("c%d", a.value)
	case argRO:
		rest := p.ro[a.value:]
		if end := bytes.IndexByte(rest, 0); end >= 0 && printable(rest[:end]) {
			return fmt.Sprintf("%q", rest[:end])
		}
		return fmt.Sprintf("ro+%#x", a.value)
	case argRW:
		return fmt.Sprintf("rw+%#x", a.value)
	default:
		const small = 4096
		if v := int64(a.value); v < small && v > -small { //nolint:gosec // the bits
			return fmt.Sprintf("%d", v)
		}
		return fmt.Sprintf("%#x", a.value)
	}
}

func printable(b []byte) bool {
	for _, c := range b {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
