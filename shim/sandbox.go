package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/api/types"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/shim/bundle"
	"github.com/agentsafe/agentsafe/shim/snapshot"
)

// sandbox is the pod that a shim serves when containerd asks for it by the sandbox API: no pause container, but a
// container that is created and never started. Its process waits at the point before its program for as long as the pod
// lives, holds the pod's namespaces, and costs a few pages. The pod's files (host name, hosts, resolver, shared memory)
// lie in the bundle and are mounted into each of its containers.
type sandbox struct {
	id, bundle string
	pod        *podConfig
	rt         *container.Runtime
	created    time.Time

	mu       sync.Mutex
	c        *container.Container // nil until it is started
	pid      int
	status   int
	exitedAt time.Time
	closed   bool
	done     chan struct{} // closed when it has ended, or never will have been started
}

// podDir is the directory of a pod's files in its bundle.
const podDir = bundle.PodDir

// createSandbox prepares a pod.
func (s *Service) createSandbox(id, dir, netns string, pod *podConfig) error {
	if err := container.ValidateID(id); err != nil {
		return err
	}
	if !filepath.IsAbs(dir) {
		return invalidArgument("bundle %q is not absolute", dir)
	}
	opts := s.cfg.Options
	if opts.Profile == "" {
		opts.Profile = s.cfg.Profile
	}
	rt, err := s.cfg.Open(opts)
	if err != nil {
		return err
	}
	pod.netns = netns
	b := &sandbox{id: id, bundle: dir, pod: pod, rt: rt, created: time.Now(), done: make(chan struct{})}
	s.mu.Lock()
	switch {
	case s.stopping:
		err = failedPrecondition("the shim is ending")
	case s.sandbox != nil:
		err = alreadyExists("this shim has the sandbox %q already", s.sandbox.id)
	default:
		s.sandbox = b
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	err = SaveRecord(dir, &Record{Options: opts})
	if err == nil {
		err = b.makeFiles()
	}
	if err != nil {
		err = errors.Join(err, b.release())
		s.mu.Lock()
		s.sandbox = nil
		s.mu.Unlock()
	}
	return err
}

// getSandbox returns the shim's sandbox if it has this id.
func (s *Service) getSandbox(id string) (*sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sandbox == nil || s.sandbox.id != id {
		return nil, notFound("sandbox %q is not in this shim", id)
	}
	return s.sandbox, nil
}

// start makes the process that holds the namespaces.
func (b *sandbox) start(ctx context.Context, namespace string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil || b.closed {
		return failedPrecondition("cannot start sandbox %q: it has been started or stopped", b.id)
	}
	c, err := b.rt.Create(ctx, &container.CreateOptions{ID: b.id, Bundle: b.bundle, Spec: b.pod.spec(b.id, namespace), Held: true})
	if err != nil {
		return err
	}
	b.c, b.pid, b.created = c, c.Init().PID(), time.Now()
	go func() {
		status, err := c.Init().Wait()
		if err != nil {
			const unknown = 255
			status = unknown
		}
		b.mu.Lock()
		b.status, b.exitedAt = status, time.Now()
		b.mu.Unlock()
		c.Init().Close()
		close(b.done)
	}()
	return nil
}

// stop ends the pod's process; its containers have been stopped by then.
func (b *sandbox) stop(ctx context.Context) error {
	b.mu.Lock()
	c := b.c
	if c == nil && !b.closed {
		b.closed, b.exitedAt = true, time.Now()
		close(b.done)
	}
	b.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-b.done:
		return nil
	default:
	}
	if err := c.Kill(ctx, unix.SIGKILL, false); err != nil && !errors.Is(err, container.ErrNotRunning) {
		return err
	}
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// remove takes away everything that the pod has.
func (b *sandbox) remove(ctx context.Context) error {
	if err := b.stop(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		if err := b.rt.Delete(ctx, b.id, true); err != nil && !errors.Is(err, container.ErrNotExist) {
			return err
		}
		b.c.Close()
	}
	return b.release()
}

// running tells the process's pid, 0 if there is none.
func (b *sandbox) running() int {
	select {
	case <-b.done:
		return 0
	default:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pid
}

// makeFiles makes what the pod's containers share, and an empty root for the process that waits.
func (b *sandbox) makeFiles() error {
	dir := filepath.Join(b.bundle, podDir)
	// The bundle is containerd's, and nobody else can enter it.
	for _, d := range []string{dir, filepath.Join(dir, "rootfs"), filepath.Join(dir, "rootfs/proc"), filepath.Join(dir, "rootfs/dev"), filepath.Join(dir, "shm")} {
		if err := os.Mkdir(d, 0o711); err != nil { //nolint:forbidigo // see above
			return fmt.Errorf("make sandbox: %w", err)
		}
	}
	files, err := b.pod.files()
	if err != nil {
		return err
	}
	files["rootfs/pause"] = nil // is never executed, but has to be there to be named
	for name, text := range files {
		mode := os.FileMode(0o644)
		if text == nil {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, mode); err != nil {
			return fmt.Errorf("make sandbox: %w", err)
		}
	}
	if b.pod.hostIPC() {
		return nil
	}
	const shm = "mode=1777,size=67108864"
	return snapshot.Activate([]snapshot.Mount{{Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", shm}}}, filepath.Join(dir, "shm"), nil)
}

// release unmounts what makeFiles has mounted; the bundle itself is containerd's.
func (b *sandbox) release() error { return ReleaseSandbox(b.bundle) }

// ReleaseSandbox unmounts what a sandbox has mounted in its bundle. A bundle of something else is no error.
func ReleaseSandbox(dir string) error {
	return snapshot.Deactivate(bundle.PodShm(dir))
}

// equip adds the pod's files to a container's mounts, where the container has none of its own: with a pause container
// containerd does that.
func (b *sandbox) equip(spec *specs.Spec) {
	if spec.Annotations["io.kubernetes.cri.sandbox-id"] != b.id {
		return
	}
	dir := filepath.Join(b.bundle, podDir)
	for _, name := range []string{"hostname", "hosts", "resolv.conf"} {
		equipOne(spec, "/etc/"+name, filepath.Join(dir, name))
	}
	if !b.pod.hostIPC() {
		for i, m := range spec.Mounts {
			if m.Destination == "/dev/shm" && m.Type == "tmpfs" {
				spec.Mounts = append(spec.Mounts[:i:i], spec.Mounts[i+1:]...)
				break
			}
		}
		equipOne(spec, "/dev/shm", filepath.Join(dir, "shm"))
	}
}

func equipOne(spec *specs.Spec, destination, source string) {
	for _, m := range spec.Mounts {
		if m.Destination == destination {
			return
		}
	}
	options := []string{"rbind", "rprivate", "rw"}
	if spec.Root != nil && spec.Root.Readonly && destination != "/dev/shm" {
		options[2] = "ro"
	}
	spec.Mounts = append(spec.Mounts, specs.Mount{Destination: destination, Source: source, Type: "bind", Options: options})
}

// platform is what containers of the sandbox run on.
func platform(arch string) *types.Platform { return &types.Platform{OS: "linux", Architecture: arch} }
