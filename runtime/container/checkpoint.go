package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/safepath"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/criu"
)

// ErrNoCheckpoint says what can't be checkpointed or restored.
var ErrNoCheckpoint = errors.New("it can't be checkpointed and restored")

// Checkpoint has CRIU write the container's processes to o.Images, which is made if it is missing; they end unless
// o.LeaveRunning says otherwise. A profile with rules is refused: CRIU knows nothing of Landlock domains, network rules or
// supervisors, and a restored task would be less confined than it was. After an error the container goes on as before.
func (c *Container) Checkpoint(ctx context.Context, o *criu.Options) error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.unlock()
	if err := c.reload(); err != nil {
		return err
	}
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status != StatusRunning && status != StatusPaused {
		return fmt.Errorf("checkpoint container %q: %w", c.id, ErrNotRunning)
	}
	d, err := c.details()
	if err != nil {
		return err
	}
	if err := refuseRules("checkpoint", d.Policy); err != nil {
		return err
	}
	if o.Images == "" {
		return errors.New("checkpoint: no directory for its images")
	}
	if err := c.dump(ctx, o); err != nil {
		return fmt.Errorf("checkpoint container %q: %w", c.id, err)
	}
	return nil
}

// refuseRules refuses a container under a profile with rules.
func refuseRules(what string, p *Policy) error {
	if p.Profile.Unrestricted {
		return nil
	}
	return &profiles.RefusedError{
		What:  what,
		Rule:  fmt.Sprintf("profile %q: a restored task would not be under its Landlock, network and time rules, which CRIU can't restore", p.Profile.Name),
		Allow: "no profile with rules; layers and their checkpoints (agentsafectl) keep what a task has written",
	}
}

// dump plans CRIU's work from what the container is now, and has it done.
func (c *Container) dump(ctx context.Context, o *criu.Options) error {
	bundle, err := os.OpenFile(c.state.Bundle, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open bundle: %w", err)
	}
	defer bundle.Close()
	spec, err := LoadSpec(bundle)
	if err != nil {
		return err
	}
	if err := checkpointable(spec); err != nil {
		return err
	}
	plan := &criu.Dump{Options: *o, PID: c.state.InitPID, Root: c.state.Rootfs, Unified: c.state.Cgroup.Unified}
	if plan.Binds, err = c.outsideMounts(spec); err != nil {
		return err
	}
	if plan.Network, err = c.joinedNetwork(spec); err != nil {
		return err
	}
	if plan.Streams, err = criu.Streams(plan.PID); err != nil {
		return err
	}
	g, err := c.cgroupGroup()
	if err != nil {
		return err
	}
	if g != nil {
		plan.Freezer = g.Path("freezer")
	}
	for _, dir := range []string{plan.Images, plan.Work} {
		if dir != "" {
			if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:forbidigo // the caller's, on the host
				return fmt.Errorf("make directory of images: %w", err)
			}
		}
	}
	images, err := criu.OpenImages(plan.Images)
	if err != nil {
		return err
	}
	defer images.Close()
	if err := criu.WriteMeta(images, &criu.Meta{Streams: plan.Streams, EmptyNetwork: plan.EmptyNetwork}); err != nil {
		return err
	}
	return criu.Run(ctx, o, criu.PlanDump(plan), criu.Start{})
}

// checkpointable refuses what would not come back as it was.
func checkpointable(spec *specs.Spec) error {
	if spec.Process != nil && spec.Process.Terminal {
		return fmt.Errorf("process.terminal: the other end of a terminal is the engine's: %w", ErrNoCheckpoint)
	}
	own := map[specs.LinuxNamespaceType]bool{}
	for i, n := range spec.Linux.Namespaces {
		own[n.Type] = n.Path == ""
		if n.Path != "" && n.Type != specs.NetworkNamespace || n.Type == specs.UserNamespace || n.Type == specs.TimeNamespace {
			return fmt.Errorf("linux.namespaces[%d]: a namespace of type %q that is joined, or of ids or times: %w", i, n.Type, ErrNoCheckpoint)
		}
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.MountNamespace, specs.PIDNamespace} {
		if !own[kind] {
			return fmt.Errorf("linux.namespaces: without a %s namespace of its own %w", kind, ErrNoCheckpoint)
		}
	}
	return nil
}

// outsideMounts lists the mount points whose mounts come from outside of the container, where they are now.
func (c *Container) outsideMounts(spec *specs.Spec) ([]criu.Bind, error) {
	root, err := os.OpenFile("/proc/"+strconv.Itoa(c.state.InitPID)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root of container: %w", err)
	}
	defer root.Close()
	var out []criu.Bind
	for _, b := range outsideBinds(spec) {
		f, err := safepath.OpenInRoot(root, b.Destination, unix.O_PATH)
		if errors.Is(err, unix.ENOENT) {
			continue // a masked path that this kernel does not have
		}
		if err != nil {
			return nil, fmt.Errorf("look at mount %q: %w", b.Destination, err)
		}
		var st unix.Stat_t
		err = unix.Fstat(int(f.Fd()), &st)
		// What the namespace itself calls it: symlinks of the image may lead there.
		where, lerr := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
		f.Close()
		if err := errors.Join(err, lerr); err != nil {
			return nil, fmt.Errorf("look at mount %q: %w", b.Destination, err)
		}
		if b.Source == os.DevNull && st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue // a masked directory: an empty one of the container's own lies over it
		}
		out = append(out, criu.Bind{Destination: where, Source: b.Source})
	}
	return out, nil
}

// outsideBinds lists what a spec mounts from outside: its bind mounts, and the null device over files that it masks.
func outsideBinds(spec *specs.Spec) []criu.Bind {
	var out []criu.Bind
	for _, m := range spec.Mounts {
		if isBind(&m) {
			out = append(out, criu.Bind{Destination: filepath.Clean("/" + m.Destination), Source: m.Source})
		}
	}
	for _, masked := range spec.Linux.MaskedPaths {
		out = append(out, criu.Bind{Destination: filepath.Clean("/" + masked), Source: os.DevNull})
	}
	return out
}

func isBind(m *specs.Mount) bool {
	if m.Type == "bind" {
		return true
	}
	for _, o := range m.Options {
		if o == "bind" || o == "rbind" {
			return true
		}
	}
	return false
}

// joinedNetwork identifies the network namespace of a container that has joined one; "" for its own or the host's.
func (c *Container) joinedNetwork(spec *specs.Spec) (string, error) {
	for _, n := range spec.Linux.Namespaces {
		if n.Type != specs.NetworkNamespace || n.Path == "" {
			continue
		}
		link, err := os.Readlink("/proc/" + strconv.Itoa(c.state.InitPID) + "/ns/net")
		if err != nil {
			return "", fmt.Errorf("look at network namespace: %w", err)
		}
		return strings.TrimSuffix(strings.TrimPrefix(link, "net:["), "]"), nil
	}
	return "", nil
}
