// Where the caller's cgroup allows fewer processors, the Go runtime would read /proc/self/mountinfo to find out, which is long
// on a host of many containers, for a program that keeps none of them busy.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/entry"
)

// version and commit are set by the linker.
var version, commit = "0.1.0-dev", "" //nolint:gochecknoglobals // the linker needs a variable

// exitError makes the program end with the status of a container's process.
type exitError struct{ status int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

func main() {
	entry.Restore()
	prefault()
	// A process that lives for milliseconds never earns back what a collection costs; the limit is for the one that
	// stays (run, exec, events).
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(64 << 20)
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	// Whoever is in the container must not ptrace or read the process that sets it up (CVE-2016-9962). For an ordinary
	// user that holds from the program's second start on, inside the user namespace: see package rootless.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "agentsafe: set undumpable:", err)
		return 1
	}
	app := &app{}
	err := app.dispatch(context.Background(), args)
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.status
	case errors.Is(err, flag.ErrHelp):
		return 0
	}
	err = container.ExplainKernel(err)
	app.log.error(err.Error())
	fmt.Fprintln(os.Stderr, "agentsafe:", err)
	if _, ok := errors.AsType[*execError](err); ok {
		return 255 // what runc's exec answers, which engines tell from the process's own status
	}
	return 1
}

// app is one invocation: the global flags.
type app struct {
	root, logPath, logFormat, rootless string
	profile, criu                      string
	debug, systemdCgroup               bool
	log                                logger
}

type command struct {
	name, usage string
	run         func(a *app, ctx context.Context, args []string) error
}

func commands() []command {
	return []command{
		{"create", "create a container and leave it waiting for start", (*app).create},
		{"start", "execute the program of a created container", (*app).start},
		{"run", "create and start a container", (*app).runContainer},
		{"exec", "execute a further process in a container", (*app).exec},
		{"state", "print the state of a container", (*app).state},
		{"kill", "send a signal to a container's first process", (*app).kill},
		{"delete", "remove what a stopped container holds", (*app).delete},
		{"list", "list the containers below the root directory", (*app).list},
		{"ps", "list the processes of a container", (*app).ps},
		{"pause", "suspend all processes of a container", (*app).pause},
		{"resume", "let a paused container go on", (*app).resume},
		{"update", "change limits of a container", (*app).update},
		{"events", "print statistics and out-of-memory events", (*app).events},
		{"features", "print what this runtime supports, as JSON", (*app).features},
		{"spec", "write a config.json to start from", (*app).spec},
		{"checkpoint", "write a container to files, by CRIU", (*app).checkpoint},
		{"restore", "make a container of such files", (*app).restore},
	}
}

// dispatch parses the global flags and calls the command.
func (a *app) dispatch(ctx context.Context, args []string) error {
	fs := newFlags("agentsafe", "")
	fs.StringVar(&a.root, "root", "", "directory of container `state` (default: /run/agentsafe, for ordinary users $XDG_RUNTIME_DIR/agentsafe)")
	fs.StringVar(&a.logPath, "log", "", "`file` for log lines (default: standard error, errors only)")
	fs.StringVar(&a.logFormat, "log-format", "text", "text or json")
	fs.StringVar(&a.rootless, "rootless", "auto", "true, false or auto: do without the cgroups that are not delegated")
	fs.StringVar(&a.profile, "profile", "", "policy `name` for new containers (default: the host's configuration, else agent)")
	fs.BoolVar(&a.debug, "debug", false, "log more")
	fs.BoolVar(&a.systemdCgroup, "systemd-cgroup", false, "let systemd make the cgroups")
	fs.StringVar(&a.criu, "criu", "", "`program` of CRIU (default: that of PATH)")
	showVersion := fs.Bool("version", false, "print the version")
	fs.BoolVar(showVersion, "v", false, "print the version")
	fs.Usage = func() { printUsage(fs) }
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := a.log.open(a.logPath, a.logFormat, a.debug); err != nil {
		return err
	}
	if *showVersion {
		return printVersion()
	}
	rest := fs.Args()
	if len(rest) == 0 || rest[0] == "help" {
		printUsage(fs)
		return nil
	}
	for _, c := range commands() {
		if c.name == rest[0] {
			return c.run(a, ctx, rest[1:])
		}
	}
	return fmt.Errorf("unknown command %q, see agentsafe --help", rest[0])
}

// newFlags makes the flag set of a command; operands describes what follows the flags.
func newFlags(name, operands string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "usage: agentsafe %s [flags] %s\n", name, operands)
		fs.PrintDefaults()
	}
	return fs
}

// parseID parses flags that are followed by exactly one container id.
func parseID(fs *flag.FlagSet, args []string) (string, error) {
	if err := fs.Parse(args); err != nil {
		return "", err
	}
	if fs.NArg() != 1 {
		return "", fmt.Errorf("%s takes exactly one container id, not %d arguments", fs.Name(), fs.NArg())
	}
	return fs.Arg(0), nil
}

func printUsage(fs *flag.FlagSet) {
	fmt.Println("agentsafe runs containers by the OCI runtime specification, each under a profile.\n\nusage: agentsafe [flags] command ...\n\ncommands:")
	for _, c := range commands() {
		fmt.Printf("  %-11s %s\n", c.name, c.usage)
	}
	fmt.Println("\nflags:")
	fs.SetOutput(os.Stdout)
	fs.PrintDefaults()
}

// printVersion prints the lines that go-runc parses.
func printVersion() error {
	lines := []string{"agentsafe version " + version, "commit: " + commit, "spec: " + specs.Version}
	_, err := fmt.Println(strings.Join(lines, "\n"))
	return err
}
