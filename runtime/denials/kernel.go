package denials

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Types of audit messages. Source: linux/audit.h.
const (
	typeSeccomp        = 1326
	typeLandlockAccess = 1423
	typeLandlockDomain = 1424
)

// readLog is AUDIT_NLGRP_READLOG as a mask of groups.
const readLog = 1 << 0

// ErrUnsupported says that this process can't hear of the kernel's refusals: no CAP_AUDIT_READ, a kernel without
// auditing, or a network or user namespace that is not the first one.
var ErrUnsupported = errors.New("the kernel's audit messages can't be read here")

// Reader hears the kernel's audit messages.
type Reader struct {
	f    *os.File
	conn interface {
		Read(func(fd uintptr) bool) error
	}
	lost int
}

// Listen joins the audit subsystem's readers. The error is ErrUnsupported where there is nothing to be heard. The caller
// closes the Reader. Source: audit(7) of Linux, Documentation of AUDIT_NLGRP_READLOG since Linux 3.16.
func Listen() (*Reader, error) {
	// The messages carry pids of the initial namespace, whose inode is PROC_PID_INIT_INO (include/linux/proc_ns.h).
	const initialPIDs = 0xEFFFFFFC
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil || st.Ino != initialPIDs {
		return nil, fmt.Errorf("%w: this process is not in the initial pid namespace, whose pids the messages carry", ErrUnsupported)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_AUDIT)
	if err != nil {
		return nil, fmt.Errorf("%w: open netlink socket: %w", ErrUnsupported, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: readLog}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%w: join the audit log's readers: %w", ErrUnsupported, err)
	}
	// A burst must not be lost to a small buffer; without the privilege the default stays.
	const bufferBytes = 1 << 20
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferBytes) //nolint:errcheck // likewise
	f := os.NewFile(uintptr(fd), "audit")
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("watch audit messages: %w", err)
	}
	return &Reader{f: f, conn: conn}, nil
}

// Close ends a Read that is waiting.
func (r *Reader) Close() { r.f.Close() }

// Lost is how many messages did not fit into the socket's buffer, at least.
func (r *Reader) Lost() int { return r.lost }

// Read waits for the next message of a kind that [Parse] knows. The error is os.ErrClosed after Close.
func (r *Reader) Read() (Message, error) {
	buf := make([]byte, 16<<10)
	for {
		var n int
		var from unix.Sockaddr
		var err error
		if werr := r.conn.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(err, unix.EAGAIN)
		}); werr != nil {
			return Message{}, werr
		}
		if errors.Is(err, unix.ENOBUFS) {
			r.lost++
			continue
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return Message{}, fmt.Errorf("read audit messages: %w", err)
		}
		if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != 0 {
			continue // not from the kernel
		}
		if n < unix.NLMSG_HDRLEN {
			continue
		}
		// The length in the header of an audit message is that of the text alone in some releases: the datagram tells.
		kind := binary.NativeEndian.Uint16(buf[4:])
		if m, ok := Parse(kind, string(buf[unix.NLMSG_HDRLEN:n])); ok {
			return m, nil
		}
	}
}

// Message is what an audit message says of a refusal.
type Message struct {
	Time time.Time
	// PID is in the first PID namespace; 0 if the message names none. Program and Exe are the process's own words.
	PID          int
	Program, Exe string
	// Arch is AUDIT_ARCH_ and Call the number, of a refused system call. Which errno it answered no message says.
	Arch uint32
	Call int
	// Domain is Landlock's; Blockers what it refused, Path and Port on what. A message with NewDomain tells who made it.
	Domain    string
	NewDomain bool
	Blockers  []string
	Path      string
	Port      int
	syscall   bool
}

// IsSyscall reports whether the message is about a system call that a filter refused.
func (m *Message) IsSyscall() bool { return m.syscall }

// Parse reads the text of an audit message; false if it is about something else, or about no refusal.
func Parse(kind uint16, text string) (Message, bool) {
	if kind != typeSeccomp && kind != typeLandlockAccess && kind != typeLandlockDomain {
		return Message{}, false
	}
	head, rest, ok := strings.Cut(strings.TrimRight(text, "\x00\n"), "): ")
	if !ok {
		return Message{}, false
	}
	m := Message{Time: auditTime(strings.TrimPrefix(head, "audit(")), syscall: kind == typeSeccomp, NewDomain: kind == typeLandlockDomain}
	code := uint64(0)
	for _, f := range fields(rest) {
		number := func(base int) uint64 {
			v, _ := strconv.ParseUint(strings.TrimPrefix(f.value, "0x"), base, 64)
			return v
		}
		switch f.key {
		case "pid":
			m.PID = int(number(10)) //nolint:gosec // a pid
		case "comm":
			m.Program = f.value
		case "exe":
			m.Exe = f.value
		case "arch":
			m.Arch = uint32(number(16)) //nolint:gosec // 32 bits
		case "syscall":
			m.Call = int(number(10)) //nolint:gosec // a small number
		case "code":
			code = number(16)
		case "domain":
			m.Domain = f.value
		case "status":
			m.NewDomain = m.NewDomain && f.value == "allocated"
		case "blockers":
			m.Blockers = strings.Split(f.value, ",")
		case "path":
			m.Path = f.value
		case "dest", "src":
			m.Port = int(number(10)) //nolint:gosec // a port
		}
	}
	if m.syscall {
		return m, code&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO
	}
	return m, m.Domain != ""
}

type field struct{ key, value string }

// fields splits key=value pairs. A value in quotes is a string; a string with a quote or a blank in it is written in
// hexadecimal digits without any. Source: kernel/audit.c, audit_log_n_untrustedstring.
func fields(text string) []field {
	var out []field
	for text != "" {
		text = strings.TrimLeft(text, " ")
		key, rest, ok := strings.Cut(text, "=")
		if !ok {
			return out
		}
		if quoted, ok := strings.CutPrefix(rest, `"`); ok {
			value, after, _ := strings.Cut(quoted, `"`)
			out, text = append(out, field{key, value}), after
			continue
		}
		value, after, _ := strings.Cut(rest, " ")
		if key == "comm" || key == "exe" || key == "path" {
			value = unhex(value)
		}
		out, text = append(out, field{key, value}), after
	}
	return out
}

func unhex(s string) string {
	out := make([]byte, 0, len(s)/2)
	for i := 0; i+1 < len(s); i += 2 {
		b, err := strconv.ParseUint(s[i:i+2], 16, 8)
		if err != nil {
			return s
		}
		out = append(out, byte(b))
	}
	if len(s)%2 != 0 {
		return s
	}
	return string(out)
}

// auditTime reads "1364481363.243:24287".
func auditTime(s string) time.Time {
	seconds, rest, _ := strings.Cut(s, ".")
	millis, _, _ := strings.Cut(rest, ":")
	sec, err := strconv.ParseInt(seconds, 10, 64)
	ms, merr := strconv.ParseInt(millis, 10, 64)
	if err != nil || merr != nil {
		return time.Time{}
	}
	return time.UnixMilli(sec*1000 + ms)
}
