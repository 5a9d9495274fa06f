package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/supervise"
)

// version and commit are set by the linker.
var version, commit = "0.1.0-dev", "" //nolint:gochecknoglobals // the linker needs a variable

func main() {
	if len(os.Args) > 1 {
		fmt.Println("agentsafe-monitor", version, commit)
		fmt.Println("supervises one container; agentsafe starts it")
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "agentsafe-monitor:", err)
		os.Exit(1)
	}
}

func run() error {
	// Whoever is in the container must not ptrace or read it (CVE-2016-9962).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set undumpable: %w", err)
	}
	const memoryLimit = 16 << 20
	debug.SetMemoryLimit(memoryLimit)
	// The engine may be stopped by a signal to everything that it has started; the limits hold all the same.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE)
	conn, err := net.FileConn(os.Stdin)
	packets, ok := conn.(*net.UnixConn)
	if err != nil || !ok {
		return errors.New("standard input is not a socket: agentsafe starts this program, nobody else needs to")
	}
	os.Stdin.Close()
	return supervise.Serve(packets, version, func(string) {})
}
