package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/thread"
	"github.com/agentsafe/agentsafe/runtime/entry"
)

func hasEarlyHooks(h *specs.Hooks) bool {
	return h != nil && len(h.Prestart)+len(h.CreateRuntime)+len(h.CreateContainer) > 0 //nolint:staticcheck // see runHooks
}

// ociState is what hooks read from their standard input and what `agentsafe state` prints.
func (c *Container) ociState(status Status) *specs.State {
	return &specs.State{
		Version: c.state.OCIVersion, ID: c.id, Status: specs.ContainerState(status), Pid: c.state.InitPID,
		Bundle: c.state.Bundle, Annotations: c.state.Annotations,
	}
}

// runHooks runs hooks in the runtime's namespaces, one after the other. A hook that fails, can't be found or exceeds
// its timeout ends the series. Source: runtime-spec 1.3.0, config.md "POSIX-platform Hooks".
func runHooks(ctx context.Context, kind string, hooks []specs.Hook, state *specs.State) error {
	for i := range hooks {
		if err := runHook(ctx, &hooks[i], state); err != nil {
			return fmt.Errorf("hooks.%s[%d] (%s): %w", kind, i, hooks[i].Path, err)
		}
	}
	return nil
}

// runHooksInside runs hooks in the namespaces of the container's init, on a thread that is not used again.
func runHooksInside(ctx context.Context, kind string, hooks []specs.Hook, state *specs.State, pidfd *os.File) error {
	if len(hooks) == 0 {
		return nil
	}
	// setns(2) moves the thread's root onto whatever is mounted over "/", and that may be the container's root already:
	// the hook would be the image's program (TestAttack_CreateContainerHookOfTheImage). The child's own root stays below.
	root, err := os.OpenFile("/proc/"+strconv.Itoa(state.Pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("hooks.%s: open root of init: %w", kind, err)
	}
	defer root.Close()
	done := make(chan error)
	thread.Go(func() {
		done <- func() error {
			// A mount namespace can't be joined by a thread that shares its working directory and root with others.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare root and working directory: %w", err)
			}
			flags := unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
			if err := unix.Setns(int(pidfd.Fd()), flags); err != nil {
				return fmt.Errorf("hooks.%s: join container's namespaces: %w", kind, err)
			}
			if err := unix.Fchdir(int(root.Fd())); err != nil {
				return fmt.Errorf("hooks.%s: enter root of init: %w", kind, err)
			}
			if err := unix.Chroot("."); err != nil {
				return fmt.Errorf("hooks.%s: enter root of init: %w", kind, err)
			}
			return runHooks(ctx, kind, hooks, state)
		}()
	})
	return <-done
}

// hookOutputBytes of a failing hook's standard error go into the error.
const hookOutputBytes = 2048

func runHook(ctx context.Context, h *specs.Hook, state *specs.State) error {
	input, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if h.Timeout != nil {
		timeout := time.Duration(*h.Timeout) * time.Second
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("timed out after %v", timeout))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, h.Path)
	if len(h.Args) > 0 {
		cmd.Args = h.Args
	}
	cmd.Env = h.Env
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.Stdin = bytes.NewReader(input)
	// Whoever waits for a hook that hangs ends this program at last: the hook ends with it. The signal comes when the thread
	// that has made the child ends, so that no other goroutine may use up this one meanwhile.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	// A grandchild that keeps the pipe open must not hold the container up.
	cmd.WaitDelay = time.Second
	entry.Restore()
	err = cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	text := strings.TrimSpace(string(output.Bytes()[:min(output.Len(), hookOutputBytes)]))
	if text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}
