package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/agentsafe/agentsafe/shim/cmdline"
	"github.com/agentsafe/agentsafe/shim/options"
)

// Name is the runtime's, as containerd writes it.
const Name = "io.containerd.agentsafe.v2"

// Build is the version of the program.
type Build struct{ Version, Commit string }

// command is one invocation.
type command struct {
	*cmdline.Line
	build Build
	ttrpc string // containerd's socket for events
}

// Main runs the program with its arguments and returns the exit status.
func Main(args []string, b Build) int {
	line, err := cmdline.Parse(args[0], args[1:])
	if err == nil {
		err = (&command{Line: line, build: b, ttrpc: os.Getenv("TTRPC_ADDRESS")}).run()
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

func (c *command) run() error {
	switch {
	case c.Version:
		fmt.Println("agentsafe-shim", c.build.Version, c.build.Commit)
		return nil
	case c.Info:
		return c.info(os.Stdin, os.Stdout)
	case c.Handler:
		return printHandler(os.Stdin, os.Stdout)
	}
	// Whoever is in a container must not ptrace or read the process that sets it up (CVE-2016-9962).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set undumpable: %w", err)
	}
	switch c.Action {
	case "delete":
		return c.delete(context.Background(), os.Stdout)
	case "":
		return c.serve()
	}
	return fmt.Errorf("unknown action %q", c.Action)
}

// printHandler prints the handler's settings in containerd's parameters as JSON, nothing if there are none.
func printHandler(in io.Reader, out io.Writer) error {
	input, err := cmdline.ReadInput(in)
	if err != nil {
		return err
	}
	var p bootapi.BootstrapParams
	if err := proto.Unmarshal(input, &p); err != nil {
		return fmt.Errorf("decode parameters: %w", err)
	}
	for _, e := range p.Extensions {
		o, err := options.Parse(e.GetValue())
		if errors.Is(err, options.ErrUnknownType) {
			continue // an extension for somebody else
		}
		if err != nil {
			return err
		}
		if o == (options.Options{}) {
			continue
		}
		data, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("encode options: %w", err)
		}
		_, err = out.Write(data)
		return err
	}
	return nil
}
