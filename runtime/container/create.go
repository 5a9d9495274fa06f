package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/initproc"
	"github.com/agentsafe/agentsafe/runtime/rootless"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// CreateOptions describe a new container.
type CreateOptions struct {
	ID string
	// Bundle is the directory with config.json; Spec, if set, is used in place of the file.
	Bundle string
	Spec   *specs.Spec
	// Stdin, Stdout, Stderr are given to the first process; nil is /dev/null. They stay the caller's.
	Stdin, Stdout, Stderr *os.File
	// ConsoleSocket is a connected unix socket that receives the master of the terminal; needed with process.terminal.
	// It stays the caller's.
	ConsoleSocket *os.File
	// ExtraFiles become descriptors 3, 4, ... of the first process.
	ExtraFiles []*os.File
	// Activated is how many of ExtraFiles come of socket activation, of which the first process is told.
	Activated int
	// PidFile is written last, relative to the working directory; "" writes none.
	PidFile string
	// NoPivot uses chroot instead of pivot_root, for a host root on an initramfs.
	NoPivot bool
	// NoNewKeyring keeps the caller's session keyring.
	NoNewKeyring bool
	// Attached starts the container's program as soon as Start is called on the result, without a start socket: the
	// caller stays until then.
	Attached bool
	// Held is Attached for a caller that may leave a long time between Create and Start, as a shim does: Create returns
	// once the process is set up, inside its root file system, so that what is wrong with the container is an error of
	// Create. The process ends if the caller does.
	Held bool
	// Record has the container recorded, whatever the spec says: the caller is who may allow it.
	Record *Recording
	// Worktree was made for the container, and the spec binds both of its folders; nil for none, or one the spec asks for.
	Worktree *Worktree
	// Supervise puts a supervisor of this process in charge if the profile needs one, or always with SuperviseAlways; nil
	// starts the monitor program.
	Supervise       func(c *Container) (Supervisor, error)
	SuperviseAlways bool
	// Refused is told what the profile refuses, if it keeps evidence; nil has the monitor program write it down. Its error
	// is a warning: the creation fails in any case.
	Refused func(r *wire.Refused) error
}

// creation is a create in progress.
type creation struct {
	rt     *Runtime
	o      *CreateOptions
	c      *Container
	undo   undoStack
	bundle *os.File
	spec   *specs.Spec // hardened, once judged
	ns     *namespaces
	root   *rootfs.Source
	plan   []rootfs.Mount
	src    sources
	// overlaid says of mounts that are overlays what they are of.
	overlaid map[int][]profiles.MountFacts
	opened   []*os.File // everything else that is closed at the end
	group    chan groupResult
	// noCgroup says that there will be none: a rootless caller's, without delegation.
	noCgroup bool
	policy   *Policy
	asked    *profiles.Profile // what the container is judged by, once that is known
	sealed   []string          // mounts that become read-only at the end
	told     *inForce          // what the task can read about its policy; nil for nothing
	// monitor is the program that will supervise the container; nil if none needs to.
	monitor *monitor
	// outputs are the first process's streams, if they are counted; ends are the process's own ends of them.
	outputs []Output
	ends    []*os.File
	stdio   stdio

	// workspace is the profile's word on the mounts that the task works on, which workspaceMounts lists; layers are
	// locked until the first process is known, and nil without overlays.
	workspace       profiles.Workspace
	workspaceMounts []int
	layers          *layer.Layers
	worktree        *Worktree // in the place of a repository; nil for none
	commonMount     int       // of the repository's own directory
}

type groupResult struct {
	group *cgroup.Group
	err   error
}

// Create makes a container and leaves its first process waiting for Start. If it fails nothing is left behind. The
// caller closes the result.
func (r *Runtime) Create(ctx context.Context, o *CreateOptions) (*Container, error) {
	c, err := r.claim(o.ID)
	if err != nil {
		return nil, err
	}
	cr := &creation{rt: r, o: o, c: c}
	cr.undo.push(func() {
		if err := c.removeState(); err != nil {
			// Why there is no container is told first; that its id stays taken is worth a line.
			r.opts.Warn(fmt.Sprintf("clean up after the failed creation (delete --force removes it): %v", err))
		}
	})
	defer cr.closeAll()
	if err := cr.run(ctx); err != nil {
		cr.recordRefusal(err)
		cr.undo.run()
		c.Close()
		return nil, err
	}
	cr.undo.keep()
	c.unlock()
	return c, nil
}

func (cr *creation) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		cr.load, cr.judge, cr.workspaces, cr.disclose, cr.summon, cr.acquireCgroup, cr.acquireRDT, cr.spawn, cr.settle, cr.supervise, cr.hooks, cr.ready,
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("create container: %w", context.Cause(ctx))
		}
	}
	return nil
}

func (cr *creation) closeAll() {
	cr.src.close()
	if cr.ns != nil {
		cr.ns.close()
	}
	if cr.root != nil {
		cr.root.Tree.Close()
	}
	if cr.bundle != nil {
		cr.bundle.Close()
	}
	closeFiles(cr.opened)
	closeFiles(cr.ends)
	closeOutputs(cr.outputs)
	cr.stdio.close()
}

// load reads the spec and opens everything of the host that it names.
func (cr *creation) load(ctx context.Context) error {
	dir := cr.o.Bundle
	if dir == "" {
		dir = "."
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("resolve bundle: %w", err)
	}
	if cr.bundle, err = os.OpenFile(abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open bundle: %w", err)
	}
	if cr.spec = cr.o.Spec; cr.spec == nil {
		cr.spec, err = LoadSpec(cr.bundle)
	} else {
		err = validateSpec(cr.spec)
	}
	if err != nil {
		return err
	}
	if cr.spec.Process == nil {
		return invalid("process", "missing: it is required to create a container")
	}
	if cr.spec.Process.Terminal != (cr.o.ConsoleSocket != nil) {
		if cr.spec.Process.Terminal {
			return invalid("process.terminal", "a terminal needs a console socket")
		}
		return errors.New("a console socket is given, but process.terminal is false")
	}
	if n := cr.o.Activated; n > 0 {
		cr.spec.Process.Env = append(cr.spec.Process.Env, ActivationEnv(n)...)
	}
	if cr.ns, err = openNamespaces(cr.spec, cr.rt.opts.SpecIDs); err == nil {
		err = cr.needsUserNamespace()
	}
	if err != nil {
		return err
	}
	if err := cr.takeWorktree(ctx); err != nil {
		return err
	}
	if cr.plan, err = rootfs.PlanMounts(cr.spec.Mounts); err != nil {
		return err
	}
	rootPath := cr.spec.Root.Path
	if !filepath.IsAbs(rootPath) {
		rootPath = filepath.Join(abs, rootPath)
	}
	if cr.root, err = rootfs.OpenRoot(rootPath); err != nil {
		return err
	}
	if cr.src, err = openSources(cr.plan, cr.bundle); err != nil {
		return err
	}
	return cr.idmapSources()
}

// judge compiles the policy; from here on only the hardened spec counts.
func (cr *creation) judge(ctx context.Context) error {
	hardened, policy, err := cr.rt.judge(ctx, cr)
	if err != nil {
		return err
	}
	// What the policy made of the mounts has to reach them: they were planned for their sources to be judged.
	if cr.plan, err = rootfs.PlanMounts(hardened.Mounts); err != nil {
		return err
	}
	cr.spec, cr.policy = hardened, policy
	cr.holdForInputs()
	for _, n := range policy.Notes {
		if !n.Routine {
			cr.rt.opts.Warn(n.String())
		}
	}
	h := cr.spec.Hooks
	chosen, enforcement := policy.chosen()
	cr.c.state = &State{
		Version: stateVersion, OCIVersion: specs.Version, ID: cr.o.ID, Bundle: cr.bundle.Name(), Rootfs: cr.root.Path,
		Created: time.Now().UTC(), Annotations: cr.spec.Annotations,
		OwnPID:  cr.ns.own[specs.PIDNamespace],
		OwnNet:  cr.ns.own[specs.NetworkNamespace],
		UserNS:  cr.ns.own[specs.UserNamespace] || cr.ns.joined[specs.UserNamespace] != nil,
		TimeNS:  cr.ns.own[specs.TimeNamespace] || cr.ns.joined[specs.TimeNamespace] != nil,
		Network: policy.Network.Mode, ResolvConf: cr.resolvConf(),
		HasHooks: h != nil && len(h.StartContainer)+len(h.Poststart)+len(h.Poststop) > 0,
		Profile:  chosen.Name, Enforcement: enforcement, PolicyHash: policy.Hash,
	}
	if err := cr.noteHostMounts(); err != nil {
		return err
	}
	gatewayEnv(cr.spec.Process, policy.Profile, cr.o.ID, cr.c.state.Created)
	inspectEnv(cr.spec.Process, policy.Inspection)
	if cr.told != nil {
		inForceEnv(cr.spec.Process, cr.told.watched)
	}
	cr.c.detail = &Detail{Process: cr.spec.Process, Hooks: h, Policy: policy}
	if transacts(policy.Profile) {
		cr.c.detail.HealthCheck = cr.healthCheck()
	}
	return nil
}

// resolvConf returns the host's file that is mounted on /etc/resolv.conf. What an image has there grants nothing.
func (cr *creation) resolvConf() string {
	for i := range cr.plan {
		if cr.plan[i].Destination == "/etc/resolv.conf" && cr.src[i] != nil {
			return cr.src[i].Path
		}
	}
	return ""
}

// acquireCgroup plans the cgroup, writes down where it will be, and starts to make it beside the rest.
func (cr *creation) acquireCgroup(context.Context) error {
	cfg, err := cr.planCgroup()
	if err != nil {
		return err
	}
	cr.group = make(chan groupResult, 1)
	if cfg == nil {
		// Nothing is delegated, and nothing was asked for.
		cr.noCgroup = true
		cr.group <- groupResult{}
		return writeState(cr.c.dir, cr.c.state)
	}
	// Before the first directory exists: a crash from here on leaves a state that tells where to clean.
	cr.c.state.Cgroup = cgroupPaths(&cfg.State)
	if err := writeState(cr.c.dir, cr.c.state); err != nil {
		return err
	}
	go func() {
		g, err := cgroup.Create(cfg)
		cr.group <- groupResult{g, err}
	}()
	cr.undo.push(func() {
		if g, _ := cr.takeGroup(); g != nil {
			g.Destroy() //nolint:errcheck // the first error is the one to report
		}
	})
	return nil
}

// takeGroup waits for the cgroup.
func (cr *creation) takeGroup() (*cgroup.Group, error) {
	if cr.c.group == nil {
		r := <-cr.group
		cr.group <- r // for the next one who asks
		if r.err != nil {
			return nil, r.err
		}
		cr.c.group = r.group
	}
	return cr.c.group, nil
}

// spawn clones the first process; it sets itself up while the host goes on with settle.
func (cr *creation) spawn(context.Context) error {
	in, don, err := cr.planInit()
	if err != nil {
		return err
	}
	host, child, err := initproc.Socketpair()
	if err != nil {
		return err
	}
	defer child.Close()
	in.SyncFD = don.Add(child)
	program := initproc.PlanCreate(in)
	cr.c.attached, cr.c.held = cr.attached(), cr.o.Held
	if !cr.c.attached {
		cr.c.detail.StartTable = program.StartTable()
	}
	so := &initproc.SpawnOptions{
		Donation: don, CloneFlags: cr.ns.clone, PIDNamespace: cr.ns.pid, UIDMappings: cr.ns.uid, GIDMappings: cr.ns.gid,
		DenySetgroups: cr.ns.own[specs.UserNamespace] && rootfs.InUserNamespace() && rootless.SetgroupsDenied(),
	}
	kid, err := initproc.Spawn(program, host, so)
	if err != nil {
		return err
	}
	cr.c.child = kid
	cr.undo.push(func() {
		cr.reap()
		cr.c.removeHostMounts() //nolint:errcheck // the first error is the one to report
	})
	if cr.ns.unshare != 0 {
		child.Close() // as long as it is open the end of a child that could not join is not seen
		if err := kid.WaitFork(); err != nil {
			return fmt.Errorf("init: %w", err)
		}
	}
	return nil
}

// attached reports whether the child needs no start socket. startContainer hooks run between the end of the set-up and
// the program, so they need a start point.
func (cr *creation) attached() bool {
	return cr.o.Held || cr.o.Attached && (cr.spec.Hooks == nil || len(cr.spec.Hooks.StartContainer) == 0)
}

// reap ends the child of a failed creation, and whatever it has in its cgroup.
func (cr *creation) reap() {
	kid := cr.c.child
	kid.Kill() //nolint:errcheck // gone is what we want
	kid.Wait() //nolint:errcheck // likewise
	if cr.c.group != nil {
		cr.c.group.Kill(context.Background()) //nolint:errcheck // Destroy tells
	}
}

// settle does what the host does beside the child's mounts: it places the child in its cgroup, writes the pid down, and
// installs the network rules. Only then the container can be started.
func (cr *creation) settle(context.Context) error {
	network := make(chan error, 1)
	go func() { network <- cr.rt.installNetwork(cr) }()
	err := cr.placeAndGo()
	if nerr := <-network; err == nil {
		err = nerr
	}
	if err != nil {
		return cr.explain(err)
	}
	return nil
}

// placeAndGo lets the child go on as soon as its pid is written down and it stands in its cgroup. With hooks it has to
// wait for them, too.
func (cr *creation) placeAndGo() (err error) {
	kid := cr.c.child
	if err := cr.place(); err != nil {
		return err
	}
	if cr.c.state.InitStart, _, err = startTime(kid.PID); err != nil {
		return fmt.Errorf("read start time of init: %w", err)
	}
	cr.c.state.InitPID = kid.PID
	if err := cr.layersStarted(); err != nil {
		return err
	}
	if err := writeState(cr.c.dir, cr.c.state); err != nil {
		return err
	}
	if hasEarlyHooks(cr.spec.Hooks) {
		return nil
	}
	return cr.goOn()
}

// goOn lets the child go on from where it waits for the host.
func (cr *creation) goOn() error {
	if err := cr.c.child.Go(); err != nil {
		return err
	}
	if l := cr.policy.Listener; l != nil {
		return l.tell(cr.c.child, cr.c.processState(StatusCreating))
	}
	return nil
}

// place moves the child into its cgroup.
func (cr *creation) place() error {
	group, err := cr.takeGroup()
	if err != nil {
		return err
	}
	if group != nil {
		if err := group.Add(cr.c.child.PID); err != nil {
			return err
		}
		state := group.State()
		cr.c.state.Cgroup = cgroupPaths(&state)
		cr.c.detail.Cgroup = &state
	}
	if err := cr.c.joinRDT(cr.c.child.PID); err != nil {
		return err
	}
	if adj := cr.spec.Process.OOMScoreAdj; adj != nil {
		if err := writeOOMScore(cr.c.child.PID, *adj); err != nil {
			return err
		}
	}
	return cr.c.watch(cr.policy.Recording, cr.c.child.PID, cr.spec.Process)
}

// explain prefers what the child reported about its own end to the error that its end caused on this side.
func (cr *creation) explain(err error) error {
	if f := cr.c.child.Pending(); f != nil {
		return explainExec(fmt.Errorf("init: %w", f), cr.spec.Process.Args)
	}
	return err
}

// hooks runs the hooks that come before pivot_root.
func (cr *creation) hooks(ctx context.Context) error {
	h := cr.spec.Hooks
	if !hasEarlyHooks(h) {
		return nil
	}
	if err := cr.c.child.WaitHooks(); err != nil {
		return fmt.Errorf("init: %w", err)
	}
	state := cr.c.ociState(StatusCreating)
	if err := runHooks(ctx, "prestart", h.Prestart, state); err != nil { //nolint:staticcheck // Docker's network needs it
		return err
	}
	if err := runHooks(ctx, "createRuntime", h.CreateRuntime, state); err != nil {
		return err
	}
	if err := runHooksInside(ctx, "createContainer", h.CreateContainer, state, cr.c.child.PidFD); err != nil {
		return err
	}
	if err := cr.goOn(); err != nil {
		return explainExec(fmt.Errorf("init: %w", err), cr.spec.Process.Args)
	}
	return nil
}

// ready waits until the child stands at the start point; then the container exists for others. Whoever stays to start
// it learns of a failure then.
func (cr *creation) ready(context.Context) error {
	if cr.c.attached && !cr.o.Held {
		return nil
	}
	// Beside the child's last steps. A crash before this point leaves a state that delete can work with.
	if err := writeDetail(cr.c.dir, cr.c.detail); err != nil {
		return err
	}
	kid := cr.c.child
	if err := kid.WaitReady(); err != nil {
		return explainExec(fmt.Errorf("init: %w", err), cr.spec.Process.Args)
	}
	if !cr.o.Held {
		kid.Detach()
	}
	return writePidFile(cr.o.PidFile, kid.PID)
}
