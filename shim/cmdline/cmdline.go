package cmdline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/agentsafe/agentsafe/runtime/ident"
)

// Line is one invocation.
type Line struct {
	Namespace, ID, Bundle string
	// Address is containerd's gRPC socket; Socket what a shim serves, as descriptor 3.
	Address, Socket string
	// Profile is the one for containers whose options name none; Options are the handler's settings for a sandbox, as JSON.
	Profile, Options string
	// Debug asks for more in the log. Info, Handler and Version ask for something else than a shim.
	Debug, Info, Handler, Version bool
	// Action is "start", "delete" or, for the shim itself, "".
	Action string
}

// Parse reads a command line without the program. The error is flag.ErrHelp if the usage was asked for.
func Parse(program string, args []string) (*Line, error) {
	l := &Line{}
	fs := flag.NewFlagSet("containerd-shim-agentsafe-v2", flag.ContinueOnError)
	fs.StringVar(&l.Namespace, "namespace", "", "containerd's `namespace` of the container")
	fs.StringVar(&l.ID, "id", "", "`id` of the container")
	fs.StringVar(&l.Bundle, "bundle", "", "`directory` of the container, for delete (default: the working directory)")
	fs.StringVar(&l.Address, "address", "", "containerd's gRPC `socket`")
	fs.StringVar(&l.Socket, "socket", "", "`path` of the socket that is served, which is descriptor 3")
	fs.StringVar(&l.Profile, "profile", profileOf(program), "`name` of the profile for containers whose options name none")
	fs.StringVar(&l.Options, "options", "", "the handler's settings for a sandbox, as `JSON`")
	fs.String("publish-binary", "", "ignored: events go to TTRPC_ADDRESS")
	fs.BoolVar(&l.Debug, "debug", false, "log more")
	fs.BoolVar(&l.Info, "info", false, "read options from standard input, print the runtime's information")
	fs.BoolVar(&l.Handler, "handler", false, "read containerd's parameters from standard input, print the handler's settings as JSON")
	fs.BoolVar(&l.Version, "version", false, "print the version")
	fs.BoolVar(&l.Version, "v", false, "print the version")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	l.Action = fs.Arg(0)
	if l.Info || l.Handler || l.Version {
		return l, nil
	}
	if l.Namespace == "" {
		return nil, errors.New("-namespace is missing")
	}
	if err := ident.Validate(l.Namespace); err != nil {
		return nil, fmt.Errorf("-namespace: %w", err)
	}
	if err := ident.Validate(l.ID); err != nil {
		return nil, fmt.Errorf("-id: %w", err)
	}
	return l, nil
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

// maxInputBytes bounds what is read from standard input.
const maxInputBytes = 4 << 20

// ReadInput reads what containerd gives on standard input: parameters or options.
func ReadInput(from io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxInputBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	if len(data) > maxInputBytes {
		return nil, fmt.Errorf("standard input has more than %d bytes", maxInputBytes)
	}
	return data, nil
}
