package bootstrap

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// Name is the runtime's, as containerd writes it.
const Name = "io.containerd.agentsafe.v2"

// Build is the version of the program.
type Build struct{ Version, Commit string }

// command is one invocation.
type command struct {
	build                      Build
	namespace, id, bundle      string
	address, ttrpc             string // containerd's sockets
	profile, socket, options   string
	debug, showInfo, showBuild bool
}

// Main runs the program with its arguments and returns the exit status.
func Main(args []string, b Build) int {
	c := &command{build: b, ttrpc: os.Getenv("TTRPC_ADDRESS"), profile: profileOf(args[0])}
	action, err := c.parse(args[1:])
	if err == nil {
		err = c.run(action)
	}
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", Name, err)
		return 1
	}
	return 0
}

// profileOf reads a profile out of the program's name: containerd-shim-agentsafe-offline-v2, a link to the program, is
// the runtime io.containerd.agentsafe-offline.v2 with the profile offline.
func profileOf(program string) string {
	name, ok := strings.CutPrefix(filepath.Base(program), "containerd-shim-agentsafe-")
	if !ok {
		return ""
	}
	profile, ok := strings.CutSuffix(name, "-v2")
	if !ok {
		return ""
	}
	return profile
}

func (c *command) parse(args []string) (action string, err error) {
	fs := flag.NewFlagSet("containerd-shim-agentsafe-v2", flag.ContinueOnError)
	fs.StringVar(&c.namespace, "namespace", "", "containerd's `namespace` of the container")
	fs.StringVar(&c.id, "id", "", "`id` of the container")
	fs.StringVar(&c.bundle, "bundle", "", "`directory` of the container, for delete (default: the working directory)")
	fs.StringVar(&c.address, "address", "", "containerd's gRPC `socket`")
	fs.StringVar(&c.socket, "socket", "", "`path` of the socket that is served, which is descriptor 3")
	fs.StringVar(&c.profile, "profile", c.profile, "`name` of the profile for containers whose options name none")
	fs.StringVar(&c.options, "options", "", "the handler's settings for a sandbox, as `JSON`")
	fs.String("publish-binary", "", "ignored: events go to TTRPC_ADDRESS")
	fs.BoolVar(&c.debug, "debug", false, "log more")
	fs.BoolVar(&c.showInfo, "info", false, "read options from standard input, print the runtime's information")
	fs.BoolVar(&c.showBuild, "version", false, "print the version")
	fs.BoolVar(&c.showBuild, "v", false, "print the version")
	if err := fs.Parse(args); err != nil {
		return "", err
	}
	return fs.Arg(0), nil
}

func (c *command) run(action string) error {
	switch {
	case c.showBuild:
		fmt.Printf("containerd-shim-agentsafe-v2:\n  Version:  %s\n  Revision: %s\n  Go version: %s\n\n", c.build.Version, c.build.Commit, runtime.Version())
		return nil
	case c.showInfo:
		return c.info(os.Stdin, os.Stdout)
	case c.namespace == "":
		return errors.New("-namespace is missing")
	}
	if err := container.ValidateID(c.namespace); err != nil {
		return fmt.Errorf("-namespace: %w", err)
	}
	if err := container.ValidateID(c.id); err != nil {
		return fmt.Errorf("-id: %w", err)
	}
	// Whoever is in a container must not ptrace or read the process that sets it up (CVE-2016-9962).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set undumpable: %w", err)
	}
	switch action {
	case "start":
		return c.start(os.Stdin, os.Stdout)
	case "delete":
		return c.delete(context.Background(), os.Stdout)
	case "":
		return c.serve()
	}
	return fmt.Errorf("unknown action %q", action)
}

// maxInputBytes bounds what is read from standard input.
const maxInputBytes = 4 << 20

func readInput(from io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxInputBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	if len(data) > maxInputBytes {
		return nil, fmt.Errorf("standard input has more than %d bytes", maxInputBytes)
	}
	return data, nil
}
