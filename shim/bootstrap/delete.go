package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agentsafe/agentsafe/shim"
	"github.com/agentsafe/agentsafe/shim/bundle"
	"github.com/agentsafe/agentsafe/shim/snapshot"
	"github.com/agentsafe/agentsafe/shim/socket"
)

// deleteTime is less than containerd gives the whole call.
const deleteTime = 4 * time.Second

// delete removes what a killed shim left of one container and prints how the container ended.
func (c *command) delete(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, deleteTime)
	defer cancel()
	dir, err := c.bundleDir()
	if err != nil {
		return err
	}
	record, err := shim.LoadRecord(dir)
	if err != nil {
		// A full disk may have cut it off; the defaults are more likely right than nothing.
		fmt.Fprintln(os.Stderr, err)
		record = &shim.Record{}
	}
	// Cleaning up asks no policy; a profile that was removed meanwhile must not keep it from happening.
	record.Options.Profile = ""
	rt, err := openRuntime(c.Namespace, record.Options, func(m string) { fmt.Fprintln(os.Stderr, m) })
	if err != nil {
		return err
	}
	defer rt.Close()
	const killed = 128 + 9
	exit := bundle.Exit{Status: killed, At: time.Now()}
	if box, err := rt.Load(c.ID); err == nil {
		exit.PID = box.State().InitPID
		box.Close()
	}
	err = errors.Join(
		rt.Delete(ctx, c.ID, true),
		snapshot.Deactivate(filepath.Join(dir, "rootfs")),
		shim.ReleaseSandbox(dir),
		socket.RemoveDead(dir),
	)
	if err != nil {
		return err
	}
	if record.Exit != nil {
		exit = *record.Exit
	}
	data, err := proto.Marshal(&task.DeleteResponse{
		Pid: uint32(exit.PID), ExitStatus: uint32(exit.Status), ExitedAt: timestamppb.New(exit.At), //nolint:gosec // they fit
	})
	if err != nil {
		return fmt.Errorf("encode exit: %w", err)
	}
	_, err = out.Write(data)
	return err
}

// bundleDir is the bundle of the container to delete: containerd runs delete in it.
func (c *command) bundleDir() (string, error) {
	if c.Bundle != "" {
		return filepath.Abs(c.Bundle)
	}
	cwd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find bundle: %w", err)
	}
	return cwd, nil
}
