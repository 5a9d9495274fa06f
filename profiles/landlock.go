package profiles

import (
	"fmt"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// LandlockPlan is one ruleset for files, network and scopes: splitting files from network would lose the right to
// rename across directories. A nil plan enforces nothing; a note says why.
type LandlockPlan struct {
	// ABI is the version that the plan is for.
	ABI int `json:"abi"`
	// HandledFS, HandledNet and Scoped are LANDLOCK_ACCESS_FS_, LANDLOCK_ACCESS_NET_ and LANDLOCK_SCOPE_ bits.
	HandledFS  uint64 `json:"handledFS"`
	HandledNet uint64 `json:"handledNet,omitempty"`
	Scoped     uint64 `json:"scoped,omitempty"`
	// Restrict are LANDLOCK_RESTRICT_SELF_ flags.
	Restrict uint64             `json:"restrict,omitempty"`
	Rules    []LandlockRule     `json:"rules,omitempty"`
	NetRules []LandlockPortRule `json:"netRules,omitempty"`
}

// LandlockRule grants access at and below a path of the container's merged view.
type LandlockRule struct {
	Path   string `json:"path"`
	Access uint64 `json:"access"`
	// Optional paths may be missing; what is missing grants nothing and leaves the ruleset whole.
	Optional bool `json:"optional,omitempty"`
}

// FileAccess is what of the rule's access a path can have that is no directory: the kernel refuses a rule for a file
// that grants what only directories know. Source: landlock_add_rule(2), EINVAL.
func (r LandlockRule) FileAccess() uint64 { return r.Access & fsFile }

// LandlockPortRule grants access to a TCP port.
type LandlockPortRule struct {
	Port   uint16 `json:"port"`
	Access uint64 `json:"access"`
}

// Rights on files. Source: linux/landlock.h; the number of the ABI that brought them in landlockRights.
const (
	fsExecute     = 1 << 0
	fsWriteFile   = 1 << 1
	fsReadFile    = 1 << 2
	fsReadDir     = 1 << 3
	fsRemoveDir   = 1 << 4
	fsRemoveFile  = 1 << 5
	fsMakeChar    = 1 << 6
	fsMakeDir     = 1 << 7
	fsMakeReg     = 1 << 8
	fsMakeSock    = 1 << 9
	fsMakeFifo    = 1 << 10
	fsMakeBlock   = 1 << 11
	fsMakeSym     = 1 << 12
	fsRefer       = 1 << 13
	fsTruncate    = 1 << 14
	fsIoctlDev    = 1 << 15
	fsResolveUnix = 1 << 16

	fsFile   = fsExecute | fsWriteFile | fsReadFile | fsTruncate | fsIoctlDev | fsResolveUnix
	fsDevice = fsMakeChar | fsMakeBlock | fsIoctlDev

	fsReading = fsReadFile | fsReadDir | fsResolveUnix
	fsWriting = fsWriteFile | fsRemoveDir | fsRemoveFile | fsMakeDir | fsMakeReg | fsMakeSock | fsMakeFifo | fsMakeSym |
		fsRefer | fsTruncate

	netBindTCP    = 1 << 0
	netConnectTCP = 1 << 1

	scopeAbstractUnix = 1 << 0
	scopeSignal       = 1 << 1

	// logNewExecOn is LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON: refusals of what is executed later are audited, too.
	// logSubdomainsOff is LANDLOCK_RESTRICT_SELF_LOG_SUBDOMAINS_OFF: those of sandboxes that the task makes for itself are
	// not: they are no word of the profile's, and a task could fill the host's log with them.
	logNewExecOn     = 1 << 1
	logSubdomainsOff = 1 << 2
)

// ABIs that something needs, with the release of Linux that has them.
const (
	abiFiles    = 1 // 5.13
	abiRefer    = 2 // 5.19
	abiTruncate = 3 // 6.2
	abiPorts    = 4 // 6.7
	abiIoctl    = 5 // 6.10
	abiScope    = 6 // 6.12
	abiAudit    = 7 // 6.15
	abiUnix     = 9
)

func linuxWith(abi int) string {
	switch abi {
	case abiFiles:
		return "Linux 5.13 with Landlock enabled at boot"
	case abiRefer:
		return "Linux 5.19"
	case abiTruncate:
		return "Linux 6.2"
	case abiPorts:
		return "Linux 6.7"
	case abiScope:
		return "Linux 6.12"
	case abiAudit:
		return "Linux 6.15"
	}
	return fmt.Sprintf("a kernel with Landlock ABI %d", abi)
}

// handledFS are the rights that an ABI can restrict.
func handledFS(abi int) uint64 {
	out := uint64(fsRefer - 1)
	for _, r := range []struct {
		abi   int
		right uint64
	}{{abiRefer, fsRefer}, {abiTruncate, fsTruncate}, {abiIoctl, fsIoctlDev}, {abiUnix, fsResolveUnix}} {
		if abi >= r.abi {
			out |= r.right
		}
	}
	return out
}

// PlanLandlock compiles the file system part of a profile and the scopes for a kernel with the given ABI (0: Landlock
// is absent). host says which namespaces are the host's. Where the kernel can't enforce what the profile needs, the
// result is an error, or with best effort what it can enforce and a note:
//
//   - a profile that restricts writing needs ABI 3: before, truncate(2) empties a file that is not writable;
//   - any other needs Landlock at all. Under ABI 1 every rename between directories is refused, so for a profile that
//     grants the whole tree, where Landlock only backs what capabilities enforce, there is no ruleset;
//   - lists of ports need ABI 4.
func PlanLandlock(s *specs.Spec, p *Profile, host HostFacts) (*LandlockPlan, []Note, error) {
	if p.Unrestricted || p.Landlock == LandlockOff {
		return nil, nil, nil
	}
	l := &landlockBuilder{profile: p, bestEffort: host.LandlockBestEffort || p.Landlock == LandlockBestEffort, vars: ExpandVariables(s)}
	l.plan.ABI = host.LandlockABI
	var err error
	switch {
	case p.HasPack(PackContainers):
		l.note("no rules for files: a process under them can't mount, and the pack %q mounts", PackContainers)
	case grantsRoot(p.Filesystem.Write) && grantsRoot(p.Filesystem.Read) && grantsRoot(p.Filesystem.Execute):
		err = l.wholeTree()
	default:
		err = l.paths()
	}
	if err == nil {
		err = l.scopes(s, host)
	}
	if err == nil {
		err = l.ports()
	}
	if err != nil {
		return nil, nil, err
	}
	if l.plan.HandledFS|l.plan.HandledNet|l.plan.Scoped == 0 {
		return nil, l.notes, nil
	}
	l.report()
	return &l.plan, l.notes, nil
}

// report has refusals audited, if the profile asks for that and the kernel can.
func (l *landlockBuilder) report() {
	if l.profile.Evidence.Denials != DenialsKernel {
		return
	}
	if l.plan.ABI < abiAudit {
		l.note("refused files are not listed: this kernel has Landlock ABI %d, it needs %s", l.plan.ABI, linuxWith(abiAudit))
		return
	}
	l.plan.Restrict = logNewExecOn | logSubdomainsOff
}

type landlockBuilder struct {
	profile    *Profile
	bestEffort bool
	vars       Variables
	plan       LandlockPlan
	notes      []Note
}

func (l *landlockBuilder) note(format string, args ...any) {
	l.notes = append(l.notes, Note{Rule: "landlock", Text: fmt.Sprintf(format, args...)})
}

// require checks the kernel's ABI; false means that the caller goes on without, which was noted.
func (l *landlockBuilder) require(abi int, what string) (bool, error) {
	if l.plan.ABI >= abi {
		return true, nil
	}
	if l.bestEffort {
		l.note("%s is not enforced: this kernel has Landlock ABI %d, it needs %s", what, l.plan.ABI, linuxWith(abi))
		return false, nil
	}
	return false, &RefusedError{
		What:  what,
		Rule:  fmt.Sprintf("profile %q: this kernel has Landlock ABI %d, and nothing is silently weaker", l.profile.Name, l.plan.ABI),
		Allow: fmt.Sprintf("%s, or `enforcement: {landlock: %s}` in the profile or the host's configuration", linuxWith(abi), LandlockBestEffort),
	}
}

// wholeTree refuses device nodes everywhere, and ioctls of devices outside of /dev.
func (l *landlockBuilder) wholeTree() error {
	if ok, err := l.require(abiFiles, "the file system rule against device nodes"); !ok {
		return err
	}
	if l.plan.ABI < abiRefer {
		l.note("no rules for files: under Landlock ABI 1 they would refuse every rename between directories; device nodes are refused by capabilities alone")
		return nil
	}
	l.plan.HandledFS = handledFS(l.plan.ABI)
	l.grant("/", l.plan.HandledFS&^fsDevice, false)
	l.grant("/dev", l.plan.HandledFS&fsIoctlDev, true)
	return nil
}

// paths grants what the profile lists. What every program needs comes with it: the standard devices, terminals, shared
// memory, and its own entries in /proc (which read-only paths and permissions guard).
func (l *landlockBuilder) paths() error {
	if ok, err := l.require(abiFiles, "the profile's file system part"); !ok {
		return err
	}
	if !grantsRoot(l.profile.Filesystem.Write) {
		if _, err := l.require(abiTruncate, "write protection against truncate(2)"); err != nil {
			return err
		}
	}
	l.plan.HandledFS = handledFS(l.plan.ABI)
	for _, set := range []struct {
		paths  []string
		access uint64
	}{
		{l.profile.Filesystem.Read, fsReading},
		{l.profile.Filesystem.Execute, fsExecute},
		{l.profile.Filesystem.Write, fsReading | fsWriting},
	} {
		for _, unsafePath := range set.paths {
			expanded, ok := l.vars.expand(unsafePath)
			if !ok {
				l.note("%s grants nothing here: it is not set, or leads to a directory of the system", unsafePath)
				continue
			}
			l.grant(expanded, set.access, expanded != "/")
		}
	}
	l.grant("/dev", fsReading|fsWriteFile|fsIoctlDev|fsTruncate, true)
	l.grant("/dev/shm", fsReading|fsWriting, true)
	l.grant("/dev/mqueue", fsReading|fsWriting, true)
	l.grant("/proc", fsReading|fsWriteFile|fsTruncate, true)
	slices.SortFunc(l.plan.Rules, func(a, b LandlockRule) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// grant adds to the rule of a path what the ABI can restrict; what it can't is granted anyway.
func (l *landlockBuilder) grant(at string, access uint64, optional bool) {
	access &= l.plan.HandledFS
	if access == 0 {
		return
	}
	for i := range l.plan.Rules {
		if r := &l.plan.Rules[i]; r.Path == at {
			r.Access |= access
			r.Optional = r.Optional && optional
			return
		}
	}
	l.plan.Rules = append(l.plan.Rules, LandlockRule{Path: at, Access: access, Optional: optional})
}

// scopes keep a task from the host's abstract sockets and signals where it shares the host's namespaces. In namespaces
// of its own they would keep an exec from signalling the first process, and X11 and D-Bus clients from their servers.
func (l *landlockBuilder) scopes(s *specs.Spec, host HostFacts) error {
	for _, scope := range []struct {
		kind specs.LinuxNamespaceType
		bit  uint64
		what string
	}{
		{specs.NetworkNamespace, scopeAbstractUnix, "the scope against the host's abstract sockets"},
		{specs.PIDNamespace, scopeSignal, "the scope against signals to the host's processes"},
	} {
		if !host.sharesHost(s, scope.kind) {
			continue
		}
		ok, err := l.require(abiScope, scope.what)
		if err != nil {
			return err
		}
		if ok {
			l.plan.Scoped |= scope.bit
		}
	}
	return nil
}

func grantsRoot(paths []string) bool { return slices.Contains(paths, "/") }

// Variables are what a profile's paths can start with.
type Variables struct{ home, workspace string }

// ExpandVariables reads the variables from a spec. Environment and working directory can come from the image, which must not
// widen its own policy: what is no home or workspace by its place grants nothing.
func ExpandVariables(s *specs.Spec) Variables {
	var v Variables
	if s.Process == nil {
		return v
	}
	for _, e := range s.Process.Env {
		if home, ok := strings.CutPrefix(e, "HOME="); ok {
			v.home = ""
			if ownPlace(home, s.Mounts) {
				v.home = home
			}
		}
	}
	cwd := path.Clean("/" + s.Process.Cwd)
	for i := range s.Mounts {
		m := &s.Mounts[i]
		if d := path.Clean("/" + m.Destination); isBind(m) && d != "/" && within(d, cwd) && len(d) > len(v.workspace) {
			v.workspace = d
		}
	}
	if v.workspace == "" && ownPlace(cwd, s.Mounts) {
		v.workspace = cwd
	}
	return v
}

// ownPlace says whether a directory can be a task's own: not the root, not a directory of the system or one above
// such, and not within a bind mount, which somebody gave for a purpose.
func ownPlace(dir string, mounts []specs.Mount) bool {
	if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
		return false
	}
	switch first, _, deeper := strings.Cut(dir[1:], "/"); first {
	case "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr":
		return false
	case "home", "mnt", "media", "opt", "srv", "tmp", "var":
		if !deeper {
			return false
		}
	}
	for i := range mounts {
		if d := path.Clean("/" + mounts[i].Destination); isBind(&mounts[i]) && (within(d, dir) || within(dir, d)) {
			return false
		}
	}
	return true
}

// Values returns what $HOME and $WORKSPACE stand for, "" for nothing.
func (v Variables) Values() (home, workspace string) { return v.home, v.workspace }

func (v Variables) expand(unsafePath string) (string, bool) {
	for _, x := range []struct{ name, value string }{{"$HOME", v.home}, {"~", v.home}, {"$WORKSPACE", v.workspace}} {
		if rest, ok := strings.CutPrefix(unsafePath, x.name); ok {
			return x.value + rest, x.value != ""
		}
	}
	return unsafePath, true
}

// within reports whether p is dir or below it; both are clean and absolute.
func within(dir, p string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}
