package container

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/profiles/bpf"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// judge compiles the policy of a container.
func (r *Runtime) judge(ctx context.Context, cr *creation) (*specs.Spec, *Policy, error) {
	chosen, err := r.choose(cr.spec)
	if chosen != nil {
		cr.asked = chosen.profile
	}
	if err != nil {
		return nil, nil, err
	}
	profile := chosen.profile
	facts, err := cr.hostFacts(profile)
	if err != nil {
		return nil, nil, err
	}
	facts.LandlockBestEffort = r.opts.LandlockBestEffort || chosen.config.Landlock == string(profiles.LandlockBestEffort)
	policy := &Policy{Notes: chosen.notes}
	var rehearsal profiles.Rehearsal
	if chosen.warn {
		policy.Warn = profile
		rehearsal = profiles.Rehearse(cr.spec, profile, facts)
		policy.Notes = append(policy.Notes, rehearsal.Notes...)
		r.keepWarnings(cr.o.ID, profile.Name, rehearsal.Notes)
		if profile, err = profiles.Builtin(profiles.NameNone); err != nil {
			return nil, nil, err
		}
	}
	plan, err := profiles.PlanContainer(cr.spec, profile, facts)
	if err != nil {
		return nil, nil, err
	}
	if chosen.warn {
		plan.AddFilter(rehearsal.Log)
	}
	if err := checkCounted(profile); err != nil {
		return nil, nil, err
	}
	cr.workspace, cr.workspaceMounts = plan.Workspace, profile.Workspaces(cr.spec, facts.Mounts)
	policy.Profile, policy.Hash, policy.Network, policy.Notes = profile, plan.Hash(), plan.Network, append(policy.Notes, plan.Notes...)
	if plan.Network.Mode == netns.ModeGateway {
		if err := policy.egress(chosen, r.opts.ConfigDir); err != nil {
			return nil, nil, err
		}
	}
	if policy.Recording = cr.record(chosen.record, plan); policy.Recording != nil {
		policy.Notes = append(policy.Notes, profiles.Note{Rule: recordKey, Text: "what the container does is recorded in " + policy.Recording.File + ", which takes it longer"})
	}
	if policy.Listener, err = planListener(cr.spec.Linux.Seccomp, plan.Seccomp); err != nil {
		return nil, nil, err
	}
	programs, err := bpf.LoadAll(ctx, plan.Seccomp, r.opts.CacheDir, r.opts.SeccompHelper)
	if err != nil {
		return nil, nil, err
	}
	for i, f := range plan.Seccomp {
		policy.Seccomp = append(policy.Seccomp, encodeFilter(programs[i]))
		// One set of flags for all: logging, and the engine's word on speculation. WAIT_KILLABLE goes with the listener.
		policy.Flags |= f.Flags & (unix.SECCOMP_FILTER_FLAG_LOG | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
	}
	policy.Landlock = convertLandlock(plan.Landlock)
	if policy.Inspection != nil && !tells(cr.plan) {
		return nil, nil, &profiles.RefusedError{
			What: "a container whose /dev is not its own", Rule: "the profile has TLS inspected, and " + profiles.InForceDir + " is where programs find whom to trust then",
			Allow: "a tmpfs on /dev, as every engine makes it",
		}
	}
	if !profile.Unrestricted && tells(cr.plan) {
		cr.told = &inForce{watched: cr.supervised(profile)}
		cr.told.policy, cr.told.text = plan.InForce(profile, cr.spec, cr.told.watched)
	}
	return plan.Spec, policy, nil
}

// egress adds what the host's configuration says for gateways.
func (p *Policy) egress(chosen *choice, configDir string) (err error) {
	host := &chosen.config.Network
	p.Ceiling = host.ceiling(chosen.handler)
	if p.Proxy, err = host.outProxy(); err != nil {
		return fmt.Errorf("configuration of the host: network.%w", err)
	}
	p.Inspection, err = host.inspection(p.Profile, configDir)
	return err
}

// hostFacts gathers the facts of the host that a policy depends on.
func (cr *creation) hostFacts(profile *profiles.Profile) (profiles.HostFacts, error) {
	facts := profiles.HostFacts{
		Arch:           runtime.GOARCH,
		LandlockABI:    initproc.LandlockABI(),
		HostNamespaces: cr.ns.hostNamespaces(),
		Mounts:         make([]profiles.MountFacts, len(cr.spec.Mounts)),
	}
	var listening map[int]string
	var mounts mountTable
	if !profile.Unrestricted {
		if err := cr.openOverlays(); err != nil {
			return facts, err
		}
		var err error
		if listening, err = engineListeners(cr.src); err != nil {
			return facts, err
		}
		if facts.Root, err = cr.rootFacts(&mounts); err != nil {
			return facts, err
		}
	}
	if !profile.Unrestricted {
		facts.Paths = hostPaths()
	}
	for i, s := range cr.src {
		if s != nil {
			facts.Mounts[i] = profiles.MountFacts{Path: s.Path, Mode: s.Mode, Dev: s.Dev, Ino: s.Ino, Rdev: s.Rdev, Engine: listening[i], Below: cr.overlaid[i]}
			if cr.plan[i].Bind && !profile.Unrestricted {
				var err error
				if facts.Mounts[i].Mounted, err = mounts.along(s, cr.plan[i].Recursive); err != nil {
					return facts, err
				}
			}
		}
	}
	if len(profile.Filesystem.Hide) > 0 {
		var err error
		if facts.Hidden, err = cr.findHidden(profile); err != nil {
			return facts, err
		}
		facts.HiddenKnown = true
	}
	return facts, nil
}

// hostPaths identifies the directories of the host whose bind mounts are dangerous, so that a second name of one is
// recognised as well.
func hostPaths() []profiles.PathFacts {
	var out []profiles.PathFacts
	for _, path := range profiles.HostPaths() {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			out = append(out, profiles.PathFacts{Path: path, Dev: st.Dev, Ino: st.Ino})
		}
	}
	return out
}

// encodeFilter lays a filter out as an array of struct sock_filter.
func encodeFilter(in []unix.SockFilter) []byte {
	out := make([]byte, 0, len(in)*8)
	for _, i := range in {
		out = append(out, byte(i.Code), byte(i.Code>>8), i.Jt, i.Jf, byte(i.K), byte(i.K>>8), byte(i.K>>16), byte(i.K>>24))
	}
	return out
}

func convertLandlock(in *profiles.LandlockPlan) *initproc.Landlock {
	if in == nil {
		return nil
	}
	out := &initproc.Landlock{HandledFS: in.HandledFS, HandledNet: in.HandledNet, Scoped: in.Scoped, RestrictFlags: in.Restrict}
	for _, r := range in.Rules {
		out.Paths = append(out.Paths, initproc.LandlockPath{Path: r.Path, Access: r.Access, FileAccess: r.FileAccess(), Optional: r.Optional})
	}
	for _, r := range in.NetRules {
		out.Ports = append(out.Ports, initproc.LandlockPort{Port: r.Port, Access: r.Access})
	}
	return out
}

// apply puts the policy on a process; the first one and every exec go through here.
func (p *Policy) apply(process *initproc.Process) {
	if p == nil {
		return
	}
	process.Seccomp, process.SeccompFlags, process.Landlock = p.Seccomp, p.Flags, p.Landlock
	if n := p.Profile.Limits.OpenFiles; n > 0 && !p.Profile.Unrestricted {
		process.Rlimits = lowerLimit(process.Rlimits, unix.RLIMIT_NOFILE, uint64(n)) //nolint:gosec // positive
	}
	if p.PIDs > 0 {
		process.Rlimits = lowerLimit(process.Rlimits, unix.RLIMIT_NPROC, p.PIDs)
	}
}

// lowerLimit returns a copy of the limits in which one is at most n. What the engine has not set is inherited from this
// process, and must not be raised.
func lowerLimit(in []initproc.Rlimit, resource int, n uint64) []initproc.Rlimit {
	out := slices.Clone(in)
	for i := range out {
		if r := &out[i]; r.Resource == resource {
			r.Cur, r.Max = min(r.Cur, n), min(r.Max, n)
			return out
		}
	}
	var inherited unix.Rlimit
	if unix.Getrlimit(resource, &inherited) != nil {
		inherited.Max = n
	}
	n = min(n, inherited.Max)
	return append(out, initproc.Rlimit{Resource: resource, Cur: n, Max: n, SpecIndex: len(in)})
}

// installNetwork puts the drop policy into the container's network namespace. It names no interface, so it holds for
// whatever the engine attaches later.
func (r *Runtime) installNetwork(cr *creation) error {
	ns, own, err := cr.networkNamespace()
	if err != nil || ns == nil {
		return err
	}
	defer ns.Close()
	if own {
		if err := netns.LoopbackUp(ns); err != nil {
			return err
		}
	}
	if cr.policy.Network.Filtered() {
		if err := cr.installRules(ns, own); err != nil {
			return err
		}
	}
	// Between here and the start nobody learns of the namespace: it has a loopback and stays held.
	cr.c.unattached = own && cr.attached() && !cr.o.Held && !hasEarlyHooks(cr.spec.Hooks) && len(cr.spec.Linux.NetDevices) == 0
	return moveDevices(ns, cr.spec.Linux.NetDevices)
}

func (cr *creation) installRules(ns *os.File, own bool) error {
	rules, err := netns.PlanRules(cr.policy.Network)
	if err != nil {
		return err
	}
	if cr.policy.Network.Mode == netns.ModeGateway {
		return cr.rt.holdGateway(ns, own, rules)
	}
	if own {
		return rules.Hold(ns)
	}
	return rules.Install(ns)
}

// networkNamespace opens the container's network namespace; nil if it is the host's.
func (cr *creation) networkNamespace() (ns *os.File, own bool, err error) {
	if cr.ns.own[specs.NetworkNamespace] {
		f, err := openNamespace("/proc/"+strconv.Itoa(cr.c.child.PID)+"/ns/net", unix.CLONE_NEWNET)
		return f, true, err
	}
	f := cr.ns.joined[specs.NetworkNamespace]
	if f == nil || cr.ns.hostNamespaces()[specs.NetworkNamespace] {
		return nil, false, nil
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, false, fmt.Errorf("duplicate network namespace: %w", err)
	}
	return os.NewFile(uintptr(fd), "netns"), false, nil
}

// finalizeNetwork lets the rules know the links and name servers that the engine has attached since create.
func (c *Container) finalizeNetwork() error {
	if c.state.Network == netns.ModeGateway {
		return c.openGateway()
	}
	if c.state.Network != netns.ModeEngine || c.unattached {
		return nil
	}
	d, err := c.details()
	if err != nil {
		return err
	}
	ns, err := openNamespace("/proc/"+strconv.Itoa(c.state.InitPID)+"/ns/net", unix.CLONE_NEWNET)
	if err != nil {
		return err
	}
	defer ns.Close()
	servers, err := nameServers(c.state.ResolvConf)
	if err != nil {
		return err
	}
	rules, err := netns.PlanRules(d.Policy.Network)
	if err != nil {
		return err
	}
	if c.state.OwnNet {
		return rules.Settle(ns, servers)
	}
	return rules.Finalize(ns, servers)
}
