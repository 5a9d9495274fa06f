package shim

import (
	"context"
	"errors"
	"strings"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/criu"
)

// Checkpoint has CRIU write the container's processes to the directory that is asked for. They end if the options say so;
// the exit is then reported as any.
func (s *Service) Checkpoint(ctx context.Context, r *task.CheckpointTaskRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	o, err := checkpointOptions(r)
	if err != nil {
		return nil, err
	}
	t.verbs.Lock()
	defer t.verbs.Unlock()
	if err := t.c.Checkpoint(ctx, o); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// checkpointOptions decodes what containerd's own shim is told.
func checkpointOptions(r *task.CheckpointTaskRequest) (*criu.Options, error) {
	o := &criu.Options{Images: r.Path, LeaveRunning: true}
	if r.Options == nil || r.Options.TypeUrl == "" {
		return o, nil
	}
	const known = "containerd.runc.v1.CheckpointOptions"
	if name := r.Options.TypeUrl[strings.LastIndexByte(r.Options.TypeUrl, '/')+1:]; name != known {
		return nil, invalidArgument("options of an unknown type %q, known is %s", r.Options.TypeUrl, known)
	}
	var in runcoptions.CheckpointOptions
	if err := proto.Unmarshal(r.Options.Value, &in); err != nil {
		return nil, invalidArgument("decode options %s: %s", known, err)
	}
	for _, ns := range in.EmptyNamespaces {
		if ns != "network" {
			return nil, invalidArgument("empty namespace %q: only network is supported", ns)
		}
		o.EmptyNetwork = true
	}
	if in.ImagePath != "" {
		o.Images = in.ImagePath
	}
	o.Work, o.LeaveRunning = in.WorkPath, !in.Exit
	o.TCPEstablished, o.ExtUnixSk, o.FileLocks, o.ShellJob = in.OpenTcp, in.ExternalUnixSockets, in.FileLocks, in.Terminal
	return o, nil
}

// restore makes the container of a checkpoint's images, and freezes it: containerd starts what it has created later, and
// wants to know first of what.
func (t *Task) restore(ctx context.Context, o *container.CreateOptions, images string) (*container.Container, error) {
	// What was allowed to be written may be made again.
	c, err := t.rt.Restore(ctx, o, &criu.Options{Images: images, TCPEstablished: true, ExtUnixSk: true, FileLocks: true})
	if err != nil {
		return nil, err
	}
	if err := c.Pause(); err != nil {
		return nil, errors.Join(err, c.Delete(context.WithoutCancel(ctx)))
	}
	t.restored = true
	return c, nil
}
