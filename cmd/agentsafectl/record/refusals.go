package record

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/denials"
)

// Refusal is a call that a task made and did not get.
type Refusal struct {
	Call  string `json:"call"`
	Errno string `json:"errno"`
	// Path is what the call was about, as the container names it, and Access how: read, write or execute.
	Path   string `json:"path,omitempty"`
	Access string `json:"access,omitempty"`
	// Address is where it would have connected to.
	Address string `json:"address,omitempty"`
	// Port is the TCP port of a connect or a bind that was refused as such.
	Port  string `json:"port,omitempty"`
	Count int    `json:"count"`
}

// maxRefusals bounds what is kept of one run.
const maxRefusals = 1000

// refusalWatch traces every call of a container, and keeps those that were refused.
type refusalWatch struct {
	entries map[int]syscallInfo // of the tasks that are in a call
	found   map[Refusal]int
	order   []Refusal
	// begun says that the container's own program runs; what comes before is the runtime's.
	begun bool
}

// Refusals traces the container whose first process waits to be started, and returns what it was refused when all of
// its processes have ended. ready is called when the process is traced. Every call stops, so a run takes several times
// as long: this is for finding out, and nothing depends on it.
func Refusals(pid int, ready func() error) ([]Refusal, error) {
	// ptrace knows threads: all requests have to come from the one that has seized the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	options := unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE
	if err := seize(pid, options); err != nil {
		return nil, fmt.Errorf("trace process %d: %w", pid, err)
	}
	if err := ready(); err != nil {
		return nil, err
	}
	w := &refusalWatch{entries: map[int]syscallInfo{}, found: map[Refusal]int{}}
	for {
		var ws unix.WaitStatus
		task, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return w.list(), nil
		case err != nil:
			return nil, fmt.Errorf("wait for the container: %w", err)
		}
		if ws.Stopped() {
			if err := w.stopped(task, ws); err != nil && !errors.Is(err, unix.ESRCH) {
				return nil, fmt.Errorf("continue the container: %w", err)
			}
			continue
		}
		delete(w.entries, task)
	}
}

// stopped handles a stop and lets the task go on.
func (w *refusalWatch) stopped(task int, ws unix.WaitStatus) error {
	const eventStop, syscallStop = 128, 0x80
	event := int(ws) >> 16
	signal := 0
	switch sig := ws.StopSignal(); {
	case sig == unix.SIGTRAP|syscallStop:
		w.call(task)
	case event == eventStop && (sig == unix.SIGSTOP || sig == unix.SIGTSTP || sig == unix.SIGTTIN || sig == unix.SIGTTOU):
		return listen(task)
	case event == unix.PTRACE_EVENT_EXEC:
		w.begun = true
	case event == 0 && !ignored(task, sig):
		signal = int(sig)
	}
	if !w.begun {
		return unix.PtraceCont(task, signal)
	}
	return unix.PtraceSyscall(task, signal)
}

// call looks at the entry or the exit of a call.
func (w *refusalWatch) call(task int) {
	info, err := readSyscallInfo(task)
	if err != nil {
		return
	}
	if info.op == infoEntry {
		w.entries[task] = *info
		return
	}
	entry, ok := w.entries[task]
	if info.op != infoExit || !ok || info.args[0]&0xff == 0 {
		return
	}
	delete(w.entries, task)
	errno := unix.Errno(-int64(info.nr))                                                                                //nolint:gosec // a negative errno
	if r, ok := refusalOf(&stop{pid: task, args: entry.args}, denials.CallName(entry.arch, int(entry.nr)), errno); ok { //nolint:gosec // a small number
		w.add(r)
	}
}

func (w *refusalWatch) add(r Refusal) {
	if w.found[r] == 0 {
		if len(w.order) == maxRefusals {
			return
		}
		w.order = append(w.order, r)
	}
	w.found[r]++
}

func (w *refusalWatch) list() []Refusal {
	out := slices.Clone(w.order)
	for i := range out {
		out[i].Count = w.found[out[i]]
	}
	return out
}

// refusalOf tells a refusal from an error that programs expect.
func refusalOf(t *stop, call string, errno unix.Errno) (Refusal, bool) {
	r := Refusal{Call: call, Errno: unix.ErrnoName(errno)}
	switch errno {
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ECONNREFUSED, unix.EHOSTDOWN:
		if call == "connect" || call == "sendto" || call == "sendmsg" {
			r.Address = t.destination(call)
		}
		return r, r.Address != ""
	case unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT:
		return r, call == "socket"
	case unix.EPERM, unix.EACCES, unix.EROFS:
	default:
		return r, false
	}
	for _, p := range pathArguments() {
		if p.call == call {
			r.Access = p.access
			if p.flags >= 0 {
				r.Access = openAccess(t, call, p.flags)
			}
			r.Path = t.path(p.dir, p.path)
			return r, r.Path != ""
		}
	}
	if call == "connect" || call == "bind" {
		if addr := t.socketAddress(t.args[1], t.args[2]); addr.IsValid() {
			r.Port = strconv.Itoa(int(addr.Port()))
		}
	}
	if call == "connect" {
		r.Address = t.destination(call)
	}
	return r, true
}

func openAccess(t *stop, call string, flagsArg int) string {
	flags := t.args[flagsArg]
	if call == "openat2" {
		flags = t.word(flags)
	}
	if flags&unix.O_ACCMODE != unix.O_RDONLY || flags&(unix.O_CREAT|unix.O_TRUNC) != 0 {
		return accessWrite
	}
	return accessRead
}

// destination is the address of a connect(2); those of datagrams are behind more pointers than it is worth.
func (t *stop) destination(call string) string {
	at, length := t.args[1], t.args[2]
	switch call {
	case "sendto":
		at, length = t.args[4], t.args[5]
	case "sendmsg":
		return ""
	}
	addr := t.socketAddress(at, length)
	if !addr.IsValid() || addr.Addr().IsLoopback() {
		return ""
	}
	return addr.String()
}

const (
	accessRead    = "read"
	accessWrite   = "write"
	accessExecute = "execute"
)

// pathArgument says which arguments of a call name a file. flags is the argument of open(2)'s flags, or none.
type pathArgument struct {
	call      string
	dir, path int
	access    string
	flags     int
}

func pathArguments() []pathArgument {
	return []pathArgument{
		{"open", none, 0, "", 1},
		{"openat", 0, 1, "", 2},
		{"openat2", 0, 1, "", 2},
		{"creat", none, 0, accessWrite, none},
		{"execve", none, 0, accessExecute, none},
		{"execveat", 0, 1, accessExecute, none},
		{"mkdir", none, 0, accessWrite, none},
		{"mkdirat", 0, 1, accessWrite, none},
		{"mknod", none, 0, accessWrite, none},
		{"mknodat", 0, 1, accessWrite, none},
		{"rmdir", none, 0, accessWrite, none},
		{"unlink", none, 0, accessWrite, none},
		{"unlinkat", 0, 1, accessWrite, none},
		{"rename", none, 1, accessWrite, none},
		{"renameat", 2, 3, accessWrite, none},
		{"renameat2", 2, 3, accessWrite, none},
		{"link", none, 1, accessWrite, none},
		{"linkat", 2, 3, accessWrite, none},
		{"symlink", none, 1, accessWrite, none},
		{"symlinkat", 1, 2, accessWrite, none},
		{"truncate", none, 0, accessWrite, none},
		{"chmod", none, 0, accessWrite, none},
		{"fchmodat", 0, 1, accessWrite, none},
		{"chown", none, 0, accessWrite, none},
		{"fchownat", 0, 1, accessWrite, none},
		{"utimensat", 0, 1, accessWrite, none},
	}
}

// socketAddress reads a struct sockaddr of the task's; invalid for other families than IP.
func (t *stop) socketAddress(at, length uint64) netip.AddrPort {
	const longest = 128
	raw := make([]byte, min(length, longest))
	if len(raw) < 8 || !t.read(at, raw) {
		return netip.AddrPort{}
	}
	return parseSocketAddress(raw)
}
