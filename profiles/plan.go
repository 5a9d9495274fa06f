package profiles

import (
	"errors"
	"fmt"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/netns"
)

// HostFacts is what a plan depends on beside the spec and the profile. The caller gathers it.
type HostFacts struct {
	// Arch is the native architecture as GOARCH has it.
	Arch string
	// LandlockABI is the kernel's, 0 where Landlock is absent or disabled.
	LandlockABI int
	// LandlockBestEffort is the administrator's choice to go on where the kernel can't enforce the profile.
	LandlockBestEffort bool
	// HostNamespaces says for each namespace that is joined by path whether it is the host's.
	HostNamespaces map[specs.LinuxNamespaceType]bool
	// Mounts has one entry for each mount of the spec, in its order; entries of mounts that bind nothing are zero.
	Mounts []MountFacts
	// Root is what root.path is.
	Root MountFacts
	// Paths are the identities of what [HostPaths] lists. Without them a second name of a dangerous directory (a bind
	// mount of it elsewhere on the host) is not recognised.
	Paths []PathFacts
	// Hidden is what the patterns of [Profile.HidePatterns] match among the container's files, as paths of the container;
	// HiddenKnown says that somebody has looked.
	Hidden      []string
	HiddenKnown bool
}

// MountFacts is what the source of a bind mount is, taken from the opened source.
type MountFacts struct {
	// Path is absolute, with symlinks resolved.
	Path string
	// Mode is st_mode; its type bits count.
	Mode uint32
	// Dev and Ino identify the file; Rdev is the device that a node stands for.
	Dev, Ino, Rdev uint64
	// Engine is the engine that listens on the socket, or on one in the directory, and where; "" if none is known to.
	Engine string
	// Below is what an overlay is of: its directories, the lower ones first. The rest then is of the first of these.
	Below []MountFacts
	// Mounted is what of the host is mounted below a directory and comes along with it.
	Mounted []MountedFacts
}

// MountedFacts is a mount of the host below a directory that is mounted in a container.
type MountedFacts struct {
	// At is its mount point, absolute; Type its file system.
	At, Type string
	// Names are other paths of the host that show the same.
	Names []string
}

// PathFacts is the identity of a path of the host.
type PathFacts struct {
	Path     string
	Dev, Ino uint64
}

// Plan is what a spec, a profile and the host's facts compile to: plain data.
type Plan struct {
	// Profile is the name of the profile.
	Profile string
	// Spec is the hardened spec, a copy that shares nothing with the input that a plan changes.
	Spec *specs.Spec
	// Seccomp are the filters in order of installation. All judge every call and the strictest answer wins; of two
	// errnos the last filter's is seen.
	Seccomp  []SeccompFilter
	Landlock *LandlockPlan
	Network  netns.Policy
	// What follows is the profile's word on what is enforced beside the first process, with its variables expanded and
	// its defaults filled in.
	Workspace Workspace
	// Gateway is for the egress process; it is zero unless the mode is NetworkGateway.
	Gateway  Network
	Limits   Limits
	Exec     Exec
	Evidence Evidence
	Notes    []Note
}

// PlanContainer compiles the policy of a container. It is pure and leaves its input alone. The error is a
// [RefusedError] if the spec asks for what the profile does not grant, or names the field of the spec that is wrong.
func PlanContainer(spec *specs.Spec, p *Profile, host HostFacts) (*Plan, error) {
	if spec.Linux == nil {
		return nil, errors.New("linux: missing: only Linux containers have a policy")
	}
	plan := &Plan{Profile: p.Name, Spec: copySpec(spec), Network: networkPolicy(p, host.sharesHost(spec, specs.NetworkNamespace))}
	if p.Unrestricted {
		return plan, plan.engineFilter(spec, host.Arch, true)
	}
	plan.resolve(spec, p)
	for _, check := range []func() error{
		func() error { return p.checkNamespaces(spec, host) },
		func() error { return plan.hardenProcess(spec, p) },
		func() error { return p.checkDevices(spec.Linux) },
		func() error { return p.checkSysctls(spec, host) },
		func() error { return p.checkRoot(spec, &host) },
		func() error { return plan.harden(spec, p, host) },
		func() error { return plan.filters(spec, p, host.Arch) },
		func() error {
			landlock, notes, err := PlanLandlock(plan.Spec, p, host)
			plan.Landlock, plan.Notes = landlock, append(plan.Notes, notes...)
			return err
		},
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return plan, nil
}

// resolve carries over what others enforce.
func (plan *Plan) resolve(spec *specs.Spec, p *Profile) {
	plan.Limits, plan.Exec, plan.Evidence = p.Limits, p.Exec, p.Evidence
	if plan.Exec.Transaction != "" && plan.Exec.Commit == "" {
		plan.Exec.Commit = "always"
	}
	if plan.Evidence.Mode != "" && plan.Evidence.OnFull == "" {
		plan.Evidence.OnFull = "stop"
	}
	if p.Network.Mode == NetworkGateway {
		plan.Gateway = p.Network
		if plan.Gateway.DialFrom == "" {
			plan.Gateway.DialFrom = "container"
		}
	}
	w := p.Filesystem.Workspace
	w.Mode = w.mode()
	if w.Mode == WorkspaceOverlay && w.Background == "" {
		w.Background = "kill"
	}
	if len(w.Paths) > 0 {
		vars := ExpandVariables(spec)
		w.Paths = make([]string, 0, len(p.Filesystem.Workspace.Paths))
		for _, unsafePath := range p.Filesystem.Workspace.Paths {
			if expanded, ok := vars.expand(unsafePath); ok {
				w.Paths = append(w.Paths, expanded)
			}
		}
	}
	plan.Workspace = w
}

// copySpec copies as deep as harden changes.
func copySpec(in *specs.Spec) *specs.Spec {
	out := *in
	linux := *in.Linux
	out.Linux = &linux
	return &out
}

func (plan *Plan) hardenProcess(spec *specs.Spec, p *Profile) error {
	if spec.Process == nil {
		return nil
	}
	process, notes, err := PlanProcess(spec.Process, p)
	if err != nil {
		return err
	}
	plan.Spec.Process = process
	plan.Notes = append(plan.Notes, notes...)
	return nil
}

// harden changes the rest of the plan's spec.
func (plan *Plan) harden(spec *specs.Spec, p *Profile, host HostFacts) error {
	out := plan.Spec
	mounts, notes, err := p.planMounts(spec.Mounts, host, ExpandVariables(spec), sharesFiles(spec))
	if err != nil {
		return err
	}
	out.Mounts = mounts
	plan.Notes = append(plan.Notes, notes...)
	plan.Notes = append(plan.Notes, p.planPaths(out.Linux)...)
	if out.Linux.MaskedPaths, notes, err = p.planHide(out.Linux.MaskedPaths, ExpandVariables(spec), host); err != nil {
		return err
	}
	plan.Notes = append(plan.Notes, notes...)
	out.Linux.Resources = p.planLimits(spec.Linux.Resources)
	notes, err = p.checkTrust(out, host)
	plan.Notes = append(plan.Notes, notes...)
	return err
}

// sharesFiles reports whether a spec is of a pod's container: containerd's CRI and CRI-O say so.
func sharesFiles(spec *specs.Spec) bool {
	return spec.Annotations["io.kubernetes.cri.container-type"] != "" || spec.Annotations["io.kubernetes.cri-o.ContainerType"] != ""
}

// filters adds the engine's filter and ours. Ours comes last, so that its errnos are the ones that are seen, unless the
// engine's would refuse to install a further one.
func (plan *Plan) filters(spec *specs.Spec, p *Profile, goarch string) error {
	if err := plan.engineFilter(spec, goarch, false); err != nil {
		return err
	}
	if nativeArch(goarch) == "" {
		return fmt.Errorf("plan seccomp: no filters for architecture %q", goarch)
	}
	if len(plan.Seccomp) == 0 {
		plan.Notes = append(plan.Notes, Note{
			Rule: "seccomp", Routine: true,
			Text: "the engine gives no filter (its default, or seccomp=unconfined); the profile's own holds all the same",
		})
	}
	ours := *agentFilter(p, goarch)
	if p.Evidence.Denials == DenialsKernel {
		ours.Flags |= seccompFlagLog
	}
	plan.AddFilter(ours)
	return nil
}

func (plan *Plan) engineFilter(spec *specs.Spec, goarch string, compat bool) error {
	if spec.Linux.Seccomp == nil {
		return nil
	}
	f, err := FilterFromOCI(spec.Linux.Seccomp, goarch, compat)
	if err != nil {
		return err
	}
	plan.Seccomp = append(plan.Seccomp, *f)
	return nil
}

// networkPolicy translates a profile's network part; host says that the container shares the host's namespace.
func networkPolicy(p *Profile, host bool) netns.Policy {
	switch {
	case host:
		return netns.Policy{Mode: netns.ModeHost}
	case p.Unrestricted:
		return netns.Policy{Mode: netns.ModeOpen}
	case p.Network.Mode == NetworkEngine, p.Network.Mode == NetworkHost:
		return netns.Policy{Mode: netns.ModeEngine, AllowPrivate: p.Network.AllowPrivate}
	}
	if p.Network.Mode == NetworkGateway {
		return netns.Policy{Mode: netns.ModeGateway}
	}
	return netns.Policy{Mode: netns.ModeNone}
}

// String lists the plan for people.
func (plan *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "profile %s\nnetwork %s %v\n", plan.Profile, plan.Network.Mode, plan.Network.AllowPrivate)
	if p := plan.Spec.Process; p != nil {
		fmt.Fprintf(&b, "noNewPrivileges %v\n", p.NoNewPrivileges)
		if c := p.Capabilities; c != nil {
			fmt.Fprintf(&b, "capabilities\n  bounding    %v\n  effective   %v\n  permitted   %v\n  inheritable %v\n  ambient     %v\n",
				c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient)
		}
	}
	b.WriteString("mounts\n")
	for i := range plan.Spec.Mounts {
		m := &plan.Spec.Mounts[i]
		fmt.Fprintf(&b, "  %s %s %s %s\n", m.Destination, m.Type, m.Source, strings.Join(m.Options, ","))
	}
	fmt.Fprintf(&b, "masked   %s\nreadonly %s\n", strings.Join(plan.Spec.Linux.MaskedPaths, " "), strings.Join(plan.Spec.Linux.ReadonlyPaths, " "))
	plan.beside(&b)
	b.WriteString(plan.Landlock.String())
	for i := range plan.Seccomp {
		b.WriteString(plan.Seccomp[i].String())
	}
	for _, n := range plan.Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	return b.String()
}

// beside lists what is enforced beside the first process; the parts that say nothing are left out.
func (plan *Plan) beside(b *strings.Builder) {
	if w := &plan.Workspace; w.mode() != WorkspaceDirect {
		fmt.Fprintf(b, "workspace %s %v promote %q quota %d background %q\n", w.Mode, w.Paths, w.Promote, w.QuotaBytes, w.Background)
		if w.MemoryBytes > 0 {
			fmt.Fprintf(b, "workspace layers in memory %d\n", w.MemoryBytes)
		}
	}
	if g := &plan.Gateway; g.Mode == NetworkGateway {
		fmt.Fprintf(b, "gateway sets %v allow %v deny %v addresses %v from %s\n", g.RuleSets, g.Allow, g.Deny, g.Addresses, g.DialFrom)
		for i := range g.Credentials {
			fmt.Fprintf(b, "  credential %s to %s as %s\n", g.Credentials[i].Name, g.Credentials[i].Destination, g.Credentials[i].Present)
		}
	}
	if plan.Limits != (Limits{}) {
		fmt.Fprintf(b, "limits %+v\n", plan.Limits)
	}
	if e := &plan.Exec; !e.empty() {
		fmt.Fprintf(b, "exec {Transaction:%s Commit:%s WallClock:%v}\n", e.Transaction, e.Commit, e.WallClock)
		for _, command := range e.Base {
			fmt.Fprintf(b, "exec on the base: %s\n", command)
		}
	}
	if plan.Evidence != (Evidence{}) {
		fmt.Fprintf(b, "evidence %+v\n", plan.Evidence)
	}
}
