package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
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
	program, err := bpf.Load(ctx, profiles.RecordFilter(runtime.GOARCH), o.CacheDir, o.Helper)
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
	defer w.Close()
	// ptrace knows threads: all requests have to come from the one that has seized the run.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	argv := append(append([]string{o.Self}, o.ChildArgs...), append([]string{path}, o.Args...)...)
	pid, err := syscall.ForkExec(o.Self, argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2, r.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true}})
	r.Close() // so that writing fails if the child is gone
	if err != nil {
		return nil, 0, fmt.Errorf("start recorder's child: %w", err)
	}
	rec := newRecorder(NewObservations(o.Home, dir))
	rec.seen.SetCommand(o.Args)
	if err := seizeStarted(pid); err != nil {
		syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // gone is what we want
		syscall.Wait4(pid, nil, 0, nil)    //nolint:errcheck // likewise
		return nil, 0, fmt.Errorf("trace the run: %w", err)
	}
	// The child waits for it, so that it runs nothing untraced.
	if err := json.NewEncoder(w).Encode(program); err != nil {
		return nil, 0, fmt.Errorf("hand over the recorder's filter: %w", err)
	}
	w.Close()
	status, err := rec.loop(pid)
	return rec.seen, status, err
}

// seizeStarted takes over a child that has just stopped because of PTRACE_TRACEME, while it has one thread: seizing takes
// single threads, and what TRACEME has attached can't be left in a job-control stop.
func seizeStarted(pid int) error {
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		return err
	}
	if err := release(pid, unix.SIGSTOP); err != nil {
		return err
	}
	if err := seize(pid, traceOptions); err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGCONT)
}

// Attach records a process that waits to execute a container's program under [profiles.RecordFilter], with all its
// descendants, until the last one has ended. ready is called once it is traced. seen is what to add to. If this process
// ends before, so does everything that it traces: a recording that nobody keeps is no recording.
func Attach(pid int, seen *Observations, ready func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := seize(pid, traceOptions); err != nil {
		return fmt.Errorf("trace process %d: %w", pid, err)
	}
	if err := ready(); err != nil {
		return err
	}
	_, err := newRecorder(seen).loop(pid)
	return err
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
	live := map[int]bool{first: true}
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
		if !ws.Stopped() {
			r.ended(&usage)
			delete(live, pid)
			if pid == first {
				status = exitStatus(ws)
			}
			continue
		}
		if live[pid] = true; r.begun {
			r.seen.Processes = max(r.seen.Processes, len(live))
		}
		if ws.StopSignal() == unix.SIGTRAP && int(ws)>>16 == unix.PTRACE_EVENT_EXEC && !r.begun {
			// Whatever stood there before is gone, its threads too.
			r.begun, live = true, map[int]bool{pid: true}
		}
		if err := r.goOn(pid, ws, list); err != nil && !errors.Is(err, unix.ESRCH) {
			return status, fmt.Errorf("continue the run: %w", err)
		}
	}
}

// goOn looks at why a task has stopped, and lets it go on.
func (r *recorder) goOn(pid int, ws unix.WaitStatus, list []call) error {
	const eventStop = 128
	sig := ws.StopSignal()
	switch event := int(ws) >> 16; {
	case event == unix.PTRACE_EVENT_SECCOMP:
		r.stopped(pid, list)
	case event == eventStop && (sig == unix.SIGSTOP || sig == unix.SIGTSTP || sig == unix.SIGTTIN || sig == unix.SIGTTOU):
		return listen(pid)
	case event == 0 && !ignored(pid, sig):
		return unix.PtraceCont(pid, int(sig))
	}
	return unix.PtraceCont(pid, 0)
}

// ignored reports whether a task would have taken no notice of a signal if it were not traced. The first process of a
// pid namespace is not stopped from within; the kernel shows its tracer the signal nevertheless, and takes what that
// passes on as somebody's outside.
func ignored(pid int, sig unix.Signal) bool {
	if sig != unix.SIGSTOP || !namespaceInit(pid) {
		return false
	}
	sender, err := signalSender(pid)
	return err == nil && sender != 0
}

// namespaceInit reports whether a task is the first process of a pid namespace.
func namespaceInit(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			ids := strings.Fields(rest)
			return len(ids) > 1 && ids[len(ids)-1] == "1"
		}
	}
	return false
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
	r.count(r.seen.Calls, fmt.Sprintf("number %d", info.nr))
}
