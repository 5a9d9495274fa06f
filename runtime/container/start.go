package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/replace"
	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// Start executes the container's program and returns once it runs, or why it could not be executed.
func (c *Container) Start(ctx context.Context) error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.unlock()
	if !c.attached {
		if err := c.checkStart(); err != nil {
			return err
		}
	}
	if err := c.beforeStart(ctx); err != nil {
		return c.unlessEnded(c.explainStart(err))
	}
	if err := c.begin(); err != nil {
		return c.explainStart(err)
	}
	if err := c.release(); err != nil {
		return err
	}
	unix.Unlinkat(int(c.dir.Fd()), startSocket, 0) //nolint:errcheck // an attached container has none
	return c.afterStart(ctx)
}

// explainStart prefers what an attached child has reported of its own end to the error that its end caused here.
func (c *Container) explainStart(err error) error {
	if c.attached {
		if f := c.child.Pending(); f != nil {
			return explainExec(f, c.detail.Process.Args)
		}
	}
	return err
}

// checkStart makes sure that the container still waits, now that nobody else can start or delete it.
func (c *Container) checkStart() error {
	if err := c.reload(); err != nil {
		return err
	}
	status, err := c.Status()
	switch {
	case err != nil:
		return err
	case status == StatusStopped:
		return fmt.Errorf("cannot start a container that has stopped: %w", ErrNotRunning)
	case status != StatusCreated:
		return fmt.Errorf("cannot start an already running container: %w", ErrRunning)
	}
	return nil
}

// release lets init execute the program.
func (c *Container) release() error {
	if c.attached {
		if err := c.child.Go(); err != nil {
			return explainExec(err, c.detail.Process.Args)
		}
		// What only a later exec or update will read need not keep the program from starting: it is encoded beside init's
		// last steps, and written after them.
		var detail []byte
		if !c.held {
			var err error
			if detail, err = encodeJSON(detailFile, c.detail); err != nil {
				return err
			}
		}
		err := c.child.WaitExec()
		if err == nil && !c.held {
			err = replace.File(c.dir, detailFile, detail, 0o600)
		}
		return explainExec(err, c.detail.Process.Args)
	}
	d, err := c.details()
	if err != nil {
		return err
	}
	err = initproc.Start(c.dir, startSocket, d.StartTable)
	if errors.Is(err, initproc.ErrNotWaiting) {
		return fmt.Errorf("cannot start an already running container: %w", ErrRunning)
	}
	if err == nil && !initproc.Executed(c.state.InitPID) {
		err = initproc.ErrNotExecuted
	}
	return explainExec(err, d.Process.Args)
}

// beforeStart finalises what engines finish between create and start: the network; then it runs the startContainer
// hooks, inside. Source: runtime-spec 1.3.0, runtime.md "Lifecycle", step 8.
func (c *Container) beforeStart(ctx context.Context) error {
	if err := c.finalizeNetwork(); err != nil {
		return err
	}
	if !c.state.HasHooks {
		return nil
	}
	d, err := c.details()
	if err != nil || len(d.Hooks.StartContainer) == 0 {
		return err
	}
	return c.runStartHooks(ctx, d.Hooks.StartContainer)
}

// afterStart runs the poststart hooks. A failing one stops the container and is an error.
// Source: runtime-spec 1.3.0, runtime.md "Lifecycle", step 10.
func (c *Container) afterStart(ctx context.Context) error {
	if !c.state.HasHooks {
		return nil
	}
	d, err := c.details()
	if err != nil {
		return err
	}
	if err = runHooks(ctx, "poststart", d.Hooks.Poststart, c.ociState(StatusRunning)); err != nil {
		if kerr := c.killAll(ctx); kerr != nil {
			c.rt.opts.Warn(fmt.Sprintf("stop container %q after its poststart hook failed: %v", c.id, kerr))
		}
	}
	return err
}

// explainExec turns the child's report into what engines look for in runc's messages: Docker answers 127 to "not
// found" and 126 to "permission denied".
func explainExec(err error, args []string) error {
	var f *initproc.Failure
	if !errors.As(err, &f) || !strings.HasPrefix(f.What, "exec ") {
		return err
	}
	if f.Errno == unix.ENOENT && !strings.Contains(args[0], "/") {
		return fmt.Errorf("exec: %q: executable file not found in $PATH: %w", args[0], f.Errno)
	}
	return fmt.Errorf("exec: %q: %w", args[0], f.Errno)
}

// maxResolvConfBytes bounds what is read of a resolv.conf.
const maxResolvConfBytes = 64 << 10

// hostResolvConf is where the engine's own resolver finds its name servers.
const hostResolvConf = "/etc/resolv.conf"

// nameServers returns the addresses of the name servers that the engine gave the container, by the host's file that it
// mounts on /etc/resolv.conf. Docker's embedded resolver (127.0.0.11) asks its upstream servers from inside the
// container's namespace: those are the host's, and the ones that dockerd notes behind "ExtServers".
func nameServers(path string) ([]netip.Addr, error) {
	if path == "" {
		return nil, nil
	}
	text, err := readResolvConf(path)
	if err != nil {
		return nil, err
	}
	servers := netns.Nameservers(text)
	if !slices.ContainsFunc(servers, netip.Addr.IsLoopback) {
		return servers, nil
	}
	if host, err := readResolvConf(hostResolvConf); err == nil {
		servers = append(servers, netns.Nameservers(host)...)
	}
	for line := range strings.Lines(text) {
		if _, list, ok := strings.Cut(line, "ExtServers:"); ok && strings.HasPrefix(line, "#") {
			servers = append(servers, externalServers(list)...)
		}
	}
	return servers, nil
}

// externalServers parses dockerd's note: "[10.0.0.2 host(10.0.0.3)]".
func externalServers(list string) []netip.Addr {
	var out []netip.Addr
	for word := range strings.FieldsSeq(strings.Trim(strings.TrimSpace(list), "[]")) {
		word = strings.TrimSuffix(strings.TrimPrefix(word, "host("), ")")
		if a, err := netip.ParseAddr(word); err == nil {
			out = append(out, a)
		}
	}
	return out
}

func readResolvConf(path string) (string, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return "", fmt.Errorf("open name server configuration: %w", err)
	}
	defer f.Close()
	// A FIFO would hold up start for as long as its writer likes, and names no server.
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxResolvConfBytes))
	if err != nil {
		return "", fmt.Errorf("read name server configuration: %w", err)
	}
	return string(data), nil
}
