package main

import (
	"context"
	"flag"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// checkpointFlags takes the flags of runc's checkpoint and restore, so that what is refused is the operation.
func checkpointFlags(name string) *flag.FlagSet {
	fs := newFlags(name, "ID")
	for _, n := range []string{
		"image-path", "work-path", "parent-path", "status-fd", "page-server", "manage-cgroups-mode", "empty-ns", "bundle", "b",
		"console-socket", "pid-file", "lsm-profile", "lsm-mount-context",
	} {
		fs.String(n, "", "as runc's")
	}
	for _, n := range []string{
		"leave-running", "tcp-established", "tcp-skip-in-flight", "link-remap", "ext-unix-sk", "shell-job", "lazy-pages", "file-locks",
		"pre-dump", "auto-dedup", "detach", "d", "no-subreaper", "no-pivot",
	} {
		fs.Bool(n, false, "as runc's")
	}
	return fs
}

// checkpoint says why the container can't be checkpointed.
func (a *app) checkpoint(ctx context.Context, args []string) error {
	id, err := parseID(checkpointFlags("checkpoint"), args)
	if err != nil {
		return err
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	return c.Checkpoint(ctx, a.criu)
}

func (a *app) restore(_ context.Context, args []string) error {
	if _, err := parseID(checkpointFlags("restore"), args); err != nil {
		return err
	}
	return container.ErrNoCheckpoint
}
