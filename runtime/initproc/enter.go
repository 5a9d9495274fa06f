package initproc

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/entry"
)

// Enter describes how a process of an ordinary user becomes root of a user namespace: in its place, with its number,
// its terminal and its descriptors. setns(2) refuses that to a process with more than one thread, which every Go
// program is. execve(2) leaves one thread, so the process executes a small program of ours, which joins and then
// executes Program.
type Enter struct {
	// UserNamespace is the namespace to join; the caller must own it or stand above it. It stays the caller's.
	UserNamespace *os.File
	// Program is executed as root of the namespace, in a mount namespace that belongs to it.
	Program   string
	Args, Env []string
	// FailureStatus is the exit status if that fails. There is nobody left to report to by then, so the reason goes to
	// standard error.
	FailureStatus int
}

// PlanEnter compiles the program; namespaceFD is its descriptor of the namespace. It makes no system call.
func PlanEnter(in *Enter, namespaceFD int) *Program {
	const stderr = 2
	p := newProgram(stderr)
	p.begin("user namespace")
	type failure struct {
		at   *Label
		text string
	}
	var failures []failure
	orSay := func(o op, text string) {
		l := &Label{}
		failures = append(failures, failure{l, text})
		o.orElse(l)
	}
	orSay(p.call("join user namespace", unix.SYS_SETNS, imm(namespaceFD), imm(unix.CLONE_NEWUSER)),
		"joining the user namespace was refused")
	p.call("close user namespace", unix.SYS_CLOSE, imm(namespaceFD))
	// The kernel makes what is shared with the host a slave, and locks it together.
	orSay(p.call("create mount namespace", unix.SYS_UNSHARE, imm(unix.CLONE_NEWNS)),
		"no mount namespace can be made in the user namespace (is /proc/sys/user/max_mnt_namespaces 0?)")
	orSay(p.call("execute", unix.SYS_EXECVE, p.str(in.Program), p.vector(in.Args), p.vector(in.Env)),
		in.Program+" can't be executed in the user namespace")
	for _, f := range failures {
		p.place(f.at)
		text := "agentsafe: " + f.text + "\n"
		p.call("say why", unix.SYS_WRITE, imm(stderr), p.str(text), imm(len(text))).orElse(nil)
		p.call("end", unix.SYS_EXIT_GROUP, imm(in.FailureStatus))
	}
	return p
}

// Exec makes the calling process the program. It returns only if that fails before anything has changed.
func (in *Enter) Exec() error {
	fd, err := unix.FcntlInt(in.UserNamespace.Fd(), unix.F_DUPFD, 3) // kept over execve, and closed by the program
	if err != nil {
		return fmt.Errorf("duplicate user namespace: %w", err)
	}
	defer unix.Close(fd)
	exe, err := PlanEnter(in, fd).seal(fd + 1)
	if err != nil {
		return err
	}
	defer exe.Close()
	err = entry.Children(func() error {
		return unix.Exec("/proc/self/fd/"+strconv.Itoa(int(exe.Fd())), []string{"agentsafe:enter"}, []string{})
	})
	return fmt.Errorf("execute the program that enters the user namespace: %w", err)
}

// Holder is a process that does nothing in a user namespace of its own, which has no ids yet.
type Holder struct {
	process *reaper
	sync    *os.File
}

// HoldUserNamespace makes a user namespace and a process in it, which waits until the Holder is closed. The caller maps
// the ids: it owns the namespace.
func HoldUserNamespace() (*Holder, error) {
	host, child, err := Socketpair()
	if err != nil {
		return nil, err
	}
	defer child.Close()
	const syncFD = 0
	p := newProgram(syncFD)
	p.begin("hold")
	p.call("wait for the end", unix.SYS_READ, imm(syncFD), p.scratch(8), imm(1)).orElse(nil)
	p.call("end", unix.SYS_EXIT_GROUP, imm(0))
	don := &Donation{}
	don.Add(child)
	exe, err := p.seal(don.above())
	if err != nil {
		host.Close()
		return nil, err
	}
	defer exe.Close()
	process, err := start("/proc/self/fd/"+strconv.Itoa(int(exe.Fd())), "agentsafe:userns", don.files,
		&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER})
	if err != nil {
		host.Close()
		return nil, fmt.Errorf("make user namespace: %w", explainClone(err))
	}
	return &Holder{process, host}, nil
}

// PID is the number of the process that holds the namespace.
func (h *Holder) PID() int { return h.process.pid }

// Close ends the process. The namespace lives on in whoever has opened or joined it.
func (h *Holder) Close() {
	h.sync.Close()
	h.process.wait() //nolint:errcheck // it does nothing that could fail
}
