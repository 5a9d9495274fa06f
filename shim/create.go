package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	events "github.com/containerd/containerd/api/events"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/supervise"
	"github.com/agentsafe/agentsafe/shim/options"
	"github.com/agentsafe/agentsafe/shim/snapshot"
	"github.com/agentsafe/agentsafe/shim/stdio"
)

// Create makes a container whose first process waits for Start; one of a checkpoint's images is frozen meanwhile.
func (s *Service) Create(ctx context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	if err := s.reserve(r.ID); err != nil {
		return nil, err
	}
	t, err := s.create(ctx, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.tasks, r.ID)
		return nil, err
	}
	s.tasks[r.ID] = t
	return &task.CreateTaskResponse{Pid: t.init.pid32()}, nil
}

// reserve claims an id for a task that is being created.
func (s *Service) reserve(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return failedPrecondition("the shim is ending")
	}
	if _, ok := s.tasks[id]; ok {
		return alreadyExists("container %q is in this shim already", id)
	}
	s.tasks[id] = nil
	return nil
}

func (s *Service) create(ctx context.Context, r *task.CreateTaskRequest) (*Task, error) {
	if !filepath.IsAbs(r.Bundle) {
		return nil, invalidArgument("bundle %q is not absolute", r.Bundle)
	}
	opts, err := options.Parse(r.Options)
	if err != nil {
		return nil, invalidArgument("%s", err)
	}
	if opts.Profile == "" {
		opts.Profile = s.cfg.Profile
	}
	rt, err := s.cfg.Open(opts)
	if err != nil {
		return nil, err
	}
	if err := SaveRecord(r.Bundle, &Record{Options: opts}); err != nil {
		return nil, err
	}
	t := &Task{
		id: r.ID, bundle: r.Bundle, service: s, rt: rt, execs: map[string]*process{},
		ioUID: int(opts.IOUID), ioGID: int(opts.IOGID),
	}
	if err := t.mountRootfs(r.Rootfs); err != nil {
		return nil, err
	}
	if err := t.createInit(ctx, r, opts); err != nil {
		if t.rootfs != "" {
			err = errors.Join(err, snapshot.Deactivate(t.rootfs))
		}
		return nil, err
	}
	t.publishCreate(r)
	t.watchOOM()
	// Only now: the exit must not overtake the creation.
	go t.init.watch(t.init.proc)
	return t, nil
}

func (t *Task) mountRootfs(mounts []*types.Mount) error {
	if len(mounts) == 0 {
		return nil
	}
	rootfs := filepath.Join(t.bundle, "rootfs")
	if err := os.Mkdir(rootfs, 0o711); err != nil && !errors.Is(err, os.ErrExist) { //nolint:forbidigo // in the bundle, which is the engine's
		return fmt.Errorf("make root file system: %w", err)
	}
	list := make([]snapshot.Mount, len(mounts))
	for i, m := range mounts {
		list[i] = snapshot.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options}
	}
	if err := snapshot.Activate(list, rootfs, container.NewUserNamespace); err != nil {
		return err
	}
	t.rootfs = rootfs
	return nil
}

func (t *Task) createInit(ctx context.Context, r *task.CreateTaskRequest, opts options.Options) error {
	spec, err := loadSpec(r.Bundle)
	if err != nil {
		return err
	}
	t.service.mu.Lock()
	pod := t.service.sandbox
	t.service.mu.Unlock()
	if pod != nil {
		pod.equip(spec)
	}
	if spec.Process == nil {
		return invalidArgument("process: missing: it is required to create a container")
	}
	if spec.Process.Terminal != r.Terminal {
		return invalidArgument("process.terminal is %t, but the request says %t", spec.Process.Terminal, r.Terminal)
	}
	p := &process{
		task: t, done: make(chan struct{}),
		at: stdio.Addresses{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal},
	}
	if p.streams, err = t.openStreams(p.at, spec.Process); err != nil {
		return err
	}
	o := &container.CreateOptions{
		ID: r.ID, Bundle: r.Bundle, Spec: spec, NoPivot: opts.NoPivotRoot, NoNewKeyring: opts.NoNewKeyring, Held: true,
	}
	o.Stdin, o.Stdout, o.Stderr, o.ConsoleSocket = p.streams.Child()
	own := supervise.Options{Stderr: o.Stderr, Version: t.service.cfg.Version, Warn: func(m string) { t.service.cfg.Log.Warn(t.id, m) }}
	o.Supervise, o.Refused = supervise.InProcess(own, nil), supervise.RecordRefusal(own)
	if r.Checkpoint != "" {
		t.c, err = t.restore(ctx, o, r.Checkpoint)
	} else {
		t.c, err = t.rt.Create(ctx, o)
	}
	if err != nil {
		p.streams.Close()
		return err
	}
	p.proc = t.c.Init()
	p.pid, t.ownPID = p.proc.PID(), t.c.State().OwnPID
	t.init = p
	if err := p.streams.Started(); err != nil {
		p.streams.Close()
		return errors.Join(err, t.rt.Delete(context.WithoutCancel(ctx), t.id, true))
	}
	return nil
}

func loadSpec(bundle string) (*specs.Spec, error) {
	dir, err := os.Open(bundle)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	defer dir.Close()
	return container.LoadSpec(dir)
}

// openStreams opens the streams of a process, for its user.
func (t *Task) openStreams(at stdio.Addresses, p *specs.Process) (*stdio.Streams, error) {
	o := stdio.Options{
		UID: int(p.User.UID), GID: int(p.User.GID), ID: t.id, Namespace: t.service.cfg.Namespace,
		Warn: func(err error) { t.service.cfg.Log.Warn(t.id, err.Error()) },
	}
	if t.ioUID != 0 {
		o.UID = t.ioUID
	}
	if t.ioGID != 0 {
		o.GID = t.ioGID
	}
	streams, err := stdio.Open(at, o)
	if err != nil {
		return nil, invalidArgument("%s", err)
	}
	return streams, nil
}

func (t *Task) publishCreate(r *task.CreateTaskRequest) {
	t.publish(topicCreate, &events.TaskCreate{
		ContainerID: t.id, Bundle: r.Bundle, Rootfs: r.Rootfs, Checkpoint: r.Checkpoint, Pid: uint32(t.init.pid), //nolint:gosec // pids fit
		IO: &events.TaskIO{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal},
	})
}
