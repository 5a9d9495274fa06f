package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles/bpf"
)

// Options of a recording.
type Options struct {
	Args []string
	// Self is the program that calls [Child] when it is started with ChildArgs.
	Self      string
	ChildArgs []string
	// CacheDir and Helper are bpf.Load's.
	CacheDir, Helper string
	Home             string
}

// childFD is where the child finds its filter.
const childFD = 3

// Run runs a command in the current directory, with this process's standard streams, and returns what was seen and its
// exit status (128+n for signal n).
func Run(ctx context.Context, o *Options) (*Observations, int, error) {
	program, err := bpf.Load(ctx, filter(runtime.GOARCH), o.CacheDir, o.Helper)
	if err != nil {
		return nil, 0, fmt.Errorf("compile the recorder's filter: %w", err)
	}
	path, err := exec.LookPath(o.Args[0])
	if err != nil {
		return nil, 0, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, 0, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	data, err := json.Marshal(program)
	if err != nil {
		return nil, 0, err
	}
	go func() {
		w.Write(data) //nolint:errcheck // the child tells
		w.Close()
	}()
	// ptrace knows threads: all requests have to come from the one that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	argv := append(append([]string{o.Self}, o.ChildArgs...), append([]string{path}, o.Args...)...)
	pid, err := syscall.ForkExec(o.Self, argv, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2, r.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return nil, 0, fmt.Errorf("start recorder's child: %w", err)
	}
	rec := &recorder{seen: NewObservations(o.Home, dir), known: map[kind]map[string]bool{kindRead: {}, kindWrite: {}, kindExecute: {}}}
	rec.seen.Commands = []string{strings.Join(o.Args, " ")}
	status, err := rec.loop(pid)
	return rec.seen, status, err
}

// Child is the other half: it puts itself under the filter and becomes the command. args are the program's path and its
// arguments. It returns only an error.
func Child(args []string) error {
	if len(args) < 2 {
		return errors.New("record: no command")
	}
	var program []unix.SockFilter
	f := os.NewFile(childFD, "filter")
	if err := json.NewDecoder(f).Decode(&program); err != nil {
		return fmt.Errorf("read recorder's filter: %w", err)
	}
	f.Close()
	runtime.LockOSThread()
	if os.Geteuid() != 0 {
		// Without privileges a filter needs it; set-id programs run without their rights then.
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	if err := installFilter(program); err != nil {
		return fmt.Errorf("install recorder's filter: %w", err)
	}
	return fmt.Errorf("execute %s: %w", args[0], unix.Exec(args[0], args[1:], os.Environ()))
}

const traceOptions = unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE |
	unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// loop answers the stops of all tasks of the run until the last one has ended, and returns the first one's status.
func (r *recorder) loop(first int) (int, error) {
	list := calls()
	live := map[int]bool{}
	status := 0
	for {
		var ws unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &ws, unix.WALL, &usage)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return status, nil
		case err != nil:
			return status, fmt.Errorf("wait for the run: %w", err)
		}
		if ws.Exited() || ws.Signaled() {
			r.ended(&usage)
			delete(live, pid)
			if pid == first {
				status = exitStatus(ws)
			}
			continue
		}
		deliver := 0
		switch cause := ws.TrapCause(); {
		case !live[pid]:
			// The stop that every traced task begins with.
			if err := r.begin(pid, pid == first, live); err != nil {
				return status, err
			}
		case ws.StopSignal() == unix.SIGTRAP && cause == unix.PTRACE_EVENT_SECCOMP:
			r.stopped(pid, list)
		case ws.StopSignal() == unix.SIGTRAP && cause == unix.PTRACE_EVENT_EXEC && !r.begun:
			// The threads of the recorder's own half are gone.
			r.begun, r.seen.Processes, live = true, 1, map[int]bool{first: true}
		case ws.StopSignal() == unix.SIGTRAP && cause > 0:
		default:
			deliver = int(ws.StopSignal())
		}
		if err := unix.PtraceCont(pid, deliver); err != nil && !errors.Is(err, unix.ESRCH) {
			return status, fmt.Errorf("continue the run: %w", err)
		}
	}
}

// begin takes a task in.
func (r *recorder) begin(pid int, first bool, live map[int]bool) error {
	live[pid] = true
	r.seen.Processes = max(r.seen.Processes, len(live))
	if !first {
		return nil
	}
	if err := unix.PtraceSetOptions(pid, traceOptions); err != nil {
		return fmt.Errorf("trace the run: %w", err)
	}
	return nil
}

func (r *recorder) ended(usage *unix.Rusage) {
	const kib = 1024
	r.seen.MaxRSSBytes = max(r.seen.MaxRSSBytes, usage.Maxrss*kib)
}

func exitStatus(ws unix.WaitStatus) int {
	const signalBase = 128
	if ws.Signaled() {
		return signalBase + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// stopped looks at the call that a task stopped for.
func (r *recorder) stopped(pid int, list []call) {
	info, err := readSyscallInfo(pid)
	if err != nil || info.op != infoSeccomp {
		return
	}
	t := &stop{pid: pid, args: info.args}
	if int(info.message) < len(list) {
		list[info.message].see(r, t)
		return
	}
	r.seen.Calls[fmt.Sprintf("number %d", info.nr)]++
}
