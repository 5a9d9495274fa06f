package container

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// runStartHooks runs the startContainer hooks. Their paths are looked up in the container, so that their programs are
// the image's: they get what the container's own process will have, and no more (TestAttack_StartContainerHookOfTheImage).
// Source: runtime-spec 1.3.0, config.md "StartContainer Hooks".
func (c *Container) runStartHooks(ctx context.Context, hooks []specs.Hook) error {
	for i := range hooks {
		if err := c.runStartHook(ctx, &hooks[i]); err != nil {
			return fmt.Errorf("hooks.startContainer[%d] (%s): %w", i, hooks[i].Path, err)
		}
	}
	return nil
}

func (c *Container) runStartHook(ctx context.Context, h *specs.Hook) error {
	if h.Timeout != nil {
		timeout := time.Duration(*h.Timeout) * time.Second
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("timed out after %v", timeout))
		defer cancel()
	}
	state, err := json.Marshal(c.ociState(StatusCreated))
	if err != nil {
		return err
	}
	stdin, err := memoryFile("hook-state", state)
	if err != nil {
		return err
	}
	defer stdin.Close()
	// Not a pipe: a process that the hook leaves behind must not hold the container up.
	output, err := memoryFile("hook-output", nil)
	if err != nil {
		return err
	}
	defer output.Close()
	process := *c.detail.Process
	process.Args, process.Env, process.Cwd = h.Args, h.Env, "/"
	process.Terminal, process.ConsoleSize = false, nil
	if len(process.Args) == 0 {
		process.Args = []string{h.Path}
	}
	child, err := c.startHook(&ExecOptions{Stdin: stdin, Stdout: output, Stderr: output, program: h.Path}, &process)
	if err != nil {
		return err
	}
	defer child.Close()
	stop := context.AfterFunc(ctx, func() {
		unix.PidfdSendSignal(int(child.PidFD.Fd()), unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
	})
	status, err := child.Wait()
	if !stop() {
		return context.Cause(ctx)
	}
	if err != nil || status == 0 {
		return err
	}
	text, _ := io.ReadAll(io.NewSectionReader(output, 0, hookOutputBytes))
	if status.Signaled() {
		return fmt.Errorf("signal: %v: %s", status.Signal(), strings.TrimSpace(string(text)))
	}
	return fmt.Errorf("exit status %d: %s", status.ExitStatus(), strings.TrimSpace(string(text)))
}

// startHook starts a process that the profile has not to judge: it is the container's own but for what it executes.
func (c *Container) startHook(o *ExecOptions, process *specs.Process) (*initproc.Child, error) {
	pidfd, err := c.pidfd()
	if err != nil {
		return nil, err
	}
	defer pidfd.Close()
	p := &Process{}
	child, err := c.spawnExec(o, process, pidfd, nil, p)
	if err != nil {
		return nil, err
	}
	p.child = child
	if err := c.admit(p, process, nil); err != nil {
		child.Kill() //nolint:errcheck // gone is what we want
		child.Wait() //nolint:errcheck // likewise
		child.Close()
		return nil, err
	}
	return child, nil
}

// memoryFile holds data in an anonymous file, at whose beginning it stands. The caller owns it.
func memoryFile(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("create memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(data, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return f, nil
}
