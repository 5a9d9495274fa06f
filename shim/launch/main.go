package launch

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/entry"
	"github.com/agentsafe/agentsafe/shim/cmdline"
)

// Name is the runtime's, as containerd writes it.
const Name = "io.containerd.agentsafe.v2"

// shimProgram is the shim itself.
const shimProgram = "agentsafe-shim"

// Main runs the program with its arguments and returns the exit status. version and commit are the build's.
func Main(args []string, version, commit string) int {
	entry.Restore()
	err := run(args, version, commit)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", Name, err)
	return 1
}

func run(args []string, version, commit string) error {
	line, err := cmdline.Parse(args[0], args[1:])
	if err != nil {
		return err
	}
	// Whoever is in a container must not ptrace or read the process that sets it up (CVE-2016-9962).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set undumpable: %w", err)
	}
	c := &command{Line: line, program: args[0]}
	switch {
	case line.Version:
		fmt.Printf("containerd-shim-agentsafe-v2:\n  Version:  %s\n  Revision: %s\n  Go version: %s\n\n", version, commit, runtime.Version())
		return nil
	case line.Info, line.Handler:
		return handOver(args)
	}
	switch line.Action {
	case "start":
		return c.start(os.Stdin, os.Stdout)
	case "delete":
		clean, err := c.delete(os.Stdout)
		if err != nil || clean {
			return err
		}
		return handOver(args)
	case "":
		return handOver(args)
	}
	return fmt.Errorf("unknown action %q", line.Action)
}

// command is one invocation.
type command struct {
	*cmdline.Line
	program string // as containerd calls it
}

// shimPath finds the shim's program beside this one.
func shimPath() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find program: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), shimProgram)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find %s, which is installed beside %s: %w", shimProgram, filepath.Base(self), err)
	}
	return path, nil
}

// handOver makes this process the shim's program, with the same arguments.
func handOver(args []string) error {
	path, err := shimPath()
	if err != nil {
		return err
	}
	err = entry.Children(func() error { return unix.Exec(path, args, os.Environ()) })
	return fmt.Errorf("execute %s: %w", path, err)
}
