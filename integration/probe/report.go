package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Report is what `probe report` prints.
type Report struct {
	// Status has the fields of /proc/self/status that matter: ids, capabilities, NoNewPrivs, Seccomp, ...
	Status map[string]string `json:"status"`
	// Calls maps a call to "ok", an errno's name, or "killed by SIG...".
	Calls map[string]string `json:"calls"`
	// FDs lists the open descriptors, as "N -> target".
	FDs  []string `json:"fds"`
	Cwd  string   `json:"cwd"`
	Env  []string `json:"env"`
	Root []string `json:"root"` // the names in /
}

func newReport() Report {
	r := Report{Status: map[string]string{}, Calls: map[string]string{}, Env: os.Environ()}
	r.FDs = openFDs() // first: what follows opens more
	r.Cwd, _ = os.Getwd()
	if f, err := os.Open("/proc/self/status"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			name, value, _ := strings.Cut(s.Text(), ":")
			switch name {
			case "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Umask", "SigIgn":
				r.Status[name] = strings.Join(strings.Fields(value), " ")
			}
		}
	}
	if entries, err := os.ReadDir("/"); err == nil {
		for _, e := range entries {
			r.Root = append(r.Root, e.Name())
		}
	}
	for _, c := range callTable() {
		r.Calls[c.name] = callApart(c.name)
	}
	return r
}

func openFDs() []string {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return []string{err.Error()}
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	own := fmt.Sprint(dir.Fd())
	var fds []string
	for _, n := range names {
		target, err := os.Readlink("/proc/self/fd/" + n)
		// The Go runtime's own, which are not inherited: its poller, and the cgroup's limits that it sets GOMAXPROCS by.
		if n == own || err != nil || strings.HasPrefix(target, "anon_inode:[event") || strings.Contains(target, "/cpu.cfs_") || strings.HasSuffix(target, "/cpu.max") {
			continue
		}
		fds = append(fds, n+" -> "+target)
	}
	slices.Sort(fds)
	return fds
}

// callApart makes the call in a process of its own, so that a filter that kills, or a call that succeeds, does not
// change what the next one sees.
func callApart(name string) string {
	out, err := exec.Command("/proc/self/exe", "call", name).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return "killed by " + unix.SignalName(ws.Signal())
		}
	}
	if err != nil && len(out) == 0 {
		return "not run: " + err.Error()
	}
	return strings.TrimSpace(string(out))
}

func callHere(args []string) error {
	for _, c := range callTable() {
		if len(args) == 1 && c.name == args[0] {
			fmt.Println(errName(c.do()))
			return nil
		}
	}
	return fmt.Errorf("unknown call %q", args)
}

// errName is "ok" for nil, the errno's name where there is one, else the error's text.
func errName(err error) string {
	var errno syscall.Errno
	var timeout net.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return err.Error()
}

func access(paths []string) {
	try := func(path string, flags int) string {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return errName(err)
	}
	for _, p := range paths {
		run := exec.Command(p, "nop").Run()
		if _, ok := errors.AsType[*exec.ExitError](run); ok {
			run = nil // it did run
		}
		fmt.Printf("%s read=%s write=%s execute=%s\n", p, try(p, unix.O_RDONLY), try(p, unix.O_WRONLY), errName(run))
	}
}

// landlockABI asks for the version. Source: landlock.rst, "Compatibility".
func landlockABI() int {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno != 0 {
		return 0
	}
	return int(abi)
}
