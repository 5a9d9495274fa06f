package profiles

import (
	"errors"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// What agent asks of each version of Landlock.
func TestPlanLandlock_AgentByABI(t *testing.T) {
	whole := uint64(fsRefer - 1)
	for _, c := range []struct {
		abi     int
		handled uint64
		rules   int
		note    string
	}{
		{1, 0, 0, "ABI 1"},
		{2, whole | fsRefer, 1, ""},
		{3, whole | fsRefer | fsTruncate, 1, ""},
		{4, whole | fsRefer | fsTruncate, 1, ""},
		{5, whole | fsRefer | fsTruncate | fsIoctlDev, 2, ""},
		{7, whole | fsRefer | fsTruncate | fsIoctlDev, 2, ""},
		{9, whole | fsRefer | fsTruncate | fsIoctlDev | fsResolveUnix, 2, ""},
		{99, whole | fsRefer | fsTruncate | fsIoctlDev | fsResolveUnix, 2, ""},
	} {
		spec := loadSpec(t, "docker")
		plan, notes, err := PlanLandlock(spec, agent(), HostFacts{LandlockABI: c.abi})
		if err != nil {
			t.Fatalf("ABI %d: %v", c.abi, err)
		}
		if (len(notes) == 1) != (c.note != "") || c.note != "" && !strings.Contains(notes[0].Text, c.note) {
			t.Errorf("ABI %d: notes %v", c.abi, notes)
		}
		if c.handled == 0 {
			if plan != nil {
				t.Errorf("ABI %d: %s", c.abi, plan)
			}
			continue
		}
		if plan.HandledFS != c.handled || len(plan.Rules) != c.rules || plan.HandledNet != 0 || plan.Scoped != 0 {
			t.Errorf("ABI %d: %s", c.abi, plan)
		}
		checkRules(t, plan)
	}
}

// checkRules: no rule grants what is not handled, which the kernel refuses, nor device nodes.
func checkRules(t *testing.T, plan *LandlockPlan) {
	t.Helper()
	for _, r := range plan.Rules {
		if r.Access&^plan.HandledFS != 0 || r.Access&(fsMakeChar|fsMakeBlock) != 0 {
			t.Errorf("ABI %d: rule %s grants %s", plan.ABI, r.Path, rightNames(r.Access))
		}
	}
}

// Below what a profile needs: an error that names the way out, or with best effort a note; never silence.
func TestPlanLandlock_BelowTheNeed(t *testing.T) {
	shared := loadSpec(t, "containerd")
	dropNamespace(shared, specs.PIDNamespace)
	own := loadSpec(t, "containerd")
	withHostPID := agent()
	withHostPID.Host.Namespaces = []specs.LinuxNamespaceType{specs.PIDNamespace}
	for _, c := range []struct {
		name    string
		spec    *specs.Spec
		profile *Profile
		abi     int
		what    string
	}{
		{"agent without Landlock", own, agent(), 0, "device nodes"},
		{"narrow without Landlock", own, narrow(), 0, "file system part"},
		{"narrow before truncate", own, narrow(), 2, "truncate"},
		{"scope before scopes", shared, withHostPID, 5, "signals"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := PlanLandlock(c.spec, c.profile, HostFacts{LandlockABI: c.abi})
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(refused.What, c.what) || !strings.Contains(refused.Allow, "best-effort") {
				t.Errorf("got %v", err)
			}
			byProfile := *c.profile
			byProfile.Landlock = LandlockBestEffort
			for _, how := range []struct {
				profile *Profile
				host    HostFacts
			}{{c.profile, HostFacts{LandlockABI: c.abi, LandlockBestEffort: true}}, {&byProfile, HostFacts{LandlockABI: c.abi}}} {
				_, notes, err := PlanLandlock(c.spec, how.profile, how.host)
				if err != nil || len(notes) == 0 || !strings.Contains(notes[0].Text, c.what) {
					t.Errorf("best effort: %v, notes %v", err, notes)
				}
			}
			off := *c.profile
			off.Landlock = LandlockOff
			if plan, notes, err := PlanLandlock(c.spec, &off, HostFacts{LandlockABI: 7}); plan != nil || notes != nil || err != nil {
				t.Errorf("off: %v %v %v", plan, notes, err)
			}
		})
	}
}

func TestPlanLandlock_Scopes(t *testing.T) {
	p := agent()
	p.Host.Namespaces = []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace}
	for _, c := range []struct {
		name string
		drop []specs.LinuxNamespaceType
		join map[specs.LinuxNamespaceType]bool
		want uint64
	}{
		{"own", nil, nil, 0},
		{"host pid", []specs.LinuxNamespaceType{specs.PIDNamespace}, nil, scopeSignal},
		{"host network", []specs.LinuxNamespaceType{specs.NetworkNamespace}, nil, scopeAbstractUnix},
		{"joins the host's", nil, map[specs.LinuxNamespaceType]bool{specs.PIDNamespace: true, specs.NetworkNamespace: true}, scopeSignal | scopeAbstractUnix},
		{"joins a pod's", nil, map[specs.LinuxNamespaceType]bool{specs.PIDNamespace: false}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := loadSpec(t, "containerd")
			for _, k := range c.drop {
				dropNamespace(spec, k)
			}
			for k := range c.join {
				namespace(spec, k).Path = "/proc/7/ns/x"
			}
			plan, _, err := PlanLandlock(spec, p, HostFacts{LandlockABI: 7, HostNamespaces: c.join})
			if err != nil {
				t.Fatal(err)
			}
			if plan.Scoped != c.want {
				t.Errorf("scoped %#x, want %#x", plan.Scoped, c.want)
			}
		})
	}
}

func TestPlanLandlock_Narrow(t *testing.T) {
	spec := loadSpec(t, "docker") // works in /project, a bind mount
	spec.Process.Env = append(spec.Process.Env, "HOME=/root")
	p := narrow()
	p.Filesystem.Read = append(p.Filesystem.Read, "/tmp", "~/.config")
	plan, notes, err := PlanLandlock(spec, p, HostFacts{LandlockABI: 7})
	if err != nil {
		t.Fatal(err)
	}
	if len(notes) != 0 {
		t.Errorf("notes %v", notes)
	}
	golden(t, "narrow.landlock", plan.String())
}

func TestPlanLandlock_PackContainers(t *testing.T) {
	p := narrow()
	p.Syscalls.Packs = []Pack{PackContainers}
	plan, notes, err := PlanLandlock(loadSpec(t, "docker"), p, HostFacts{LandlockABI: 7})
	if err != nil || plan != nil || len(notes) != 1 || !strings.Contains(notes[0].Text, "containers") {
		t.Errorf("%v %v %v", plan, notes, err)
	}
}

// The image chooses HOME and the working directory; neither may widen what the profile grants.
func TestAttack_HomeAndWorkspaceFromTheImage(t *testing.T) {
	for _, c := range []struct {
		home, cwd, wantHome, wantWorkspace string
	}{
		{"/root", "/project", "/root", "/project"},
		{"/home/dev", "/project/sub/dir", "/home/dev", "/project"},
		{"/home/dev", "/app", "/home/dev", "/app"},
		{"/", "/", "", ""},
		{"//", "//", "", ""},
		{"/usr", "/usr/src/app", "", ""},
		{"/etc", "/etc", "", ""},
		{"/var", "/home", "", ""},
		{"/var/lib/app", "/home/x", "/var/lib/app", "/home/x"},
		{"/proc/self/root", "/proc/1/root", "", ""},
		{"/home/../etc", "/home/../etc", "", ""},
		{"relative", "relative", "", "/relative"},
		{"/data", "/data/x", "", "/data"},
		{"/data/cache", "/", "", ""},
		{"/srv", "/srv", "", ""},
	} {
		spec := loadSpec(t, "docker")
		spec.Process.Cwd, spec.Process.Env = c.cwd, []string{"HOME=/nowhere/else", "HOME=" + c.home}
		got := ExpandVariables(spec)
		if got.home != c.wantHome || got.workspace != c.wantWorkspace {
			t.Errorf("HOME=%s cwd %s: got %+v", c.home, c.cwd, got)
		}
	}
}
