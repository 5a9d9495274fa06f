package profiles

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/netns"
)

// Engines' specs: moby 20.10.24, containerd 1.6.20 (ctr run), Podman 4.3.1, runc 1.1.5 (spec).
func TestPlanContainer_Golden(t *testing.T) {
	for _, name := range []string{"docker", "docker-net0", "docker-unconfined", "containerd", "podman", "podman-capadd", "runc-spec"} {
		t.Run(name, func(t *testing.T) {
			spec := loadSpec(t, name)
			plan, err := PlanContainer(spec, builtin(t, NameAgent), hostOf(spec))
			if err != nil {
				t.Fatal(err)
			}
			text := plan.String()
			if name != "docker" { // once is enough: the others have the same filter of ours, and engine filters of their own
				if i := strings.Index(text, "filter "); i >= 0 {
					text = text[:i] + text[strings.LastIndex(text, "  default: "):]
				}
			}
			golden(t, name+".plan", text)
		})
	}
}

// What each engine's switch beyond the profile is answered with: the rule, and what would allow it.
func TestPlanContainer_RefusedByEngineSwitch(t *testing.T) {
	for _, c := range []struct{ spec, what, allow string }{
		{"docker-privileged", "CAP_SYS_ADMIN and ", "capabilities: [..., CAP_SYS_ADMIN, ...]"},
		{"docker-device", "/dev/net/tun (c 10:200 rw)", `host: {devices: ["c 10:200 rw"]}`},
		{"docker-host", "linux.namespaces pid", "host: {namespaces: [pid]}"},
	} {
		t.Run(c.spec, func(t *testing.T) {
			spec := loadSpec(t, c.spec)
			_, err := PlanContainer(spec, builtin(t, NameAgent), hostOf(spec))
			wantRefused(t, err, c.what, c.allow)
			if _, err := PlanContainer(spec, builtin(t, NameNone), hostOf(spec)); err != nil {
				t.Errorf("profile none: %v", err)
			}
		})
	}
}

func wantRefused(t *testing.T, err error, what, allow string) {
	t.Helper()
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a refusal of %q", err, what)
	}
	if !strings.Contains(refused.What, what) || !strings.Contains(refused.Allow, allow) || refused.Rule == "" {
		t.Errorf("got %q\nwant %q and %q in it", err, what, allow)
	}
}

func TestPlanContainer_PureAndDeterministic(t *testing.T) {
	for _, name := range []string{"docker", "podman-capadd", "runc-spec"} {
		for _, profile := range []*Profile{builtin(t, NameAgent), builtin(t, NameNone), narrow()} {
			spec := loadSpec(t, name)
			before, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			first, err := PlanContainer(spec, profile, hostOf(spec))
			if err != nil {
				t.Fatal(err)
			}
			// What a caller does to the plan must not reach the input either.
			first.Spec.Linux.MaskedPaths = append(first.Spec.Linux.MaskedPaths, "/x")
			first.Spec.Linux.Namespaces = nil
			second, err := PlanContainer(loadSpec(t, name), profile, hostOf(spec))
			if err != nil {
				t.Fatal(err)
			}
			if after, _ := json.Marshal(spec); string(after) != string(before) {
				t.Errorf("%s, %s: the input changed", name, profile.Name)
			}
			third, _ := PlanContainer(loadSpec(t, name), profile, hostOf(spec))
			if second.Hash() != third.Hash() || second.String() != third.String() {
				t.Errorf("%s, %s: two plans of the same input differ", name, profile.Name)
			}
		}
	}
}

// narrow is a profile that uses every field.
func narrow() *Profile {
	p := agent()
	p.Name = "narrow"
	p.Filesystem = Filesystem{Read: []string{"/usr"}, Execute: []string{"/usr"}, Write: []string{"/tmp", "$HOME", "$WORKSPACE"}}
	p.Network = Network{Mode: NetworkEngine, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}}
	p.Syscalls = Syscalls{Packs: []Pack{PackDebug}, Allow: []string{"fanotify_mark"}, Deny: []string{"personality"}}
	p.Limits = Limits{MemoryBytes: 1 << 30, PIDs: 100, CPUs: 1.5}
	p.Host.Devices = []Device{{"c", 10, 229, "rw"}}
	return p
}

func TestProfile_SurvivesJSON(t *testing.T) {
	for _, p := range []*Profile{builtin(t, NameAgent), builtin(t, NameNone), narrow()} {
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back Profile
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(p, &back) {
			t.Errorf("%s: got %+v, want %+v", p.Name, back, p)
		}
	}
}

func TestBuiltin_Unknown(t *testing.T) {
	if _, err := Builtin("nowhere"); err == nil {
		t.Error("a profile that is not built in must be an error")
	}
	if p := builtin(t, DefaultName); p.Name != NameAgent {
		t.Errorf("the default is %q", p.Name)
	}
}

func TestPlanContainer_None(t *testing.T) {
	spec := loadSpec(t, "docker")
	plan, err := PlanContainer(spec, builtin(t, NameNone), hostOf(spec))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(plan.Spec, spec) {
		t.Error("none changed the spec")
	}
	if plan.Landlock != nil || len(plan.Notes) != 0 || len(plan.Seccomp) != 1 || plan.Network.Mode != netns.ModeOpen {
		t.Errorf("none has a policy: %s", plan)
	}
	if want := []string{"SCMP_ARCH_X86", "SCMP_ARCH_X32"}; !reflect.DeepEqual(plan.Seccomp[0].Compat, want) {
		t.Errorf("none has the ABIs %v, want the spec's %v", plan.Seccomp[0].Compat, want)
	}
}

func TestPlanContainer_Network(t *testing.T) {
	for _, c := range []struct {
		name string
		mode NetworkMode
		host bool
		want netns.Mode
	}{
		{"engine", NetworkEngine, false, netns.ModeEngine},
		{"none", NetworkNone, false, netns.ModeNone},
		{"forgotten", "", false, netns.ModeNone},
		{"host is granted but not asked for", NetworkHost, false, netns.ModeEngine},
		{"host", NetworkHost, true, netns.ModeHost},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := loadSpec(t, "containerd")
			if c.host {
				dropNamespace(spec, specs.NetworkNamespace)
			}
			p := agent()
			p.Network.Mode = c.mode
			plan, err := PlanContainer(spec, p, hostOf(spec))
			if err != nil {
				t.Fatal(err)
			}
			if plan.Network.Mode != c.want {
				t.Errorf("got %q, want %q", plan.Network.Mode, c.want)
			}
			if err := plan.Network.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func dropNamespace(s *specs.Spec, kind specs.LinuxNamespaceType) {
	var kept []specs.LinuxNamespace
	for _, n := range s.Linux.Namespaces {
		if n.Type != kind {
			kept = append(kept, n)
		}
	}
	s.Linux.Namespaces = kept
}

// The hash follows what is enforced, and nothing else.
func TestPlan_Hash(t *testing.T) {
	hash := func(change func(*specs.Spec)) string {
		spec := loadSpec(t, "docker")
		change(spec)
		plan, err := PlanContainer(spec, narrow(), hostOf(spec))
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(plan.canonical()) {
			t.Fatalf("not JSON: %s", plan.canonical())
		}
		return plan.Hash()
	}
	base := hash(func(*specs.Spec) {})
	for name, change := range map[string]func(*specs.Spec){
		"arguments":   func(s *specs.Spec) { s.Process.Args = []string{"/bin/ls"} },
		"environment": func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "A=1") },
		"cut anyway":  func(s *specs.Spec) { s.Process.NoNewPrivileges = true },
	} {
		if hash(change) != base {
			t.Errorf("%s: the hash must not change", name)
		}
	}
	seen := map[string]string{base: "nothing"}
	for name, change := range map[string]func(*specs.Spec){
		"mount option": func(s *specs.Spec) { s.Mounts[7].Options = append(s.Mounts[7].Options, "ro") },
		"mount name":   func(s *specs.Spec) { s.Mounts[7].Destination = "/a\"b\\\n\xff" },
		"mount name 2": func(s *specs.Spec) { s.Mounts[7].Destination = "/a\"b\\\n\u00ff" },
		"sysctl":       func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "0"} },
		"capabilities": func(s *specs.Spec) { s.Process.Capabilities.Bounding = s.Process.Capabilities.Bounding[1:] },
		"seccomp":      func(s *specs.Spec) { s.Linux.Seccomp.Syscalls[0].Names = s.Linux.Seccomp.Syscalls[0].Names[1:] },
		"masked":       func(s *specs.Spec) { s.Linux.MaskedPaths = append(s.Linux.MaskedPaths, "/proc/interrupts") },
		"memory":       func(s *specs.Spec) { s.Linux.Resources.Memory.Limit = new(int64(1 << 20)) },
		"home":         func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "HOME=/home/a") },
	} {
		h := hash(change)
		if other, ok := seen[h]; ok {
			t.Errorf("%s: same hash as %s", name, other)
		}
		seen[h] = name
	}
}

// FuzzPlanContainer: whatever a spec says, a plan of agent is within the profile.
func FuzzPlanContainer(f *testing.F) {
	// Small seeds beside those of engines: the fuzzer spends its time on shrinking large ones (make fuzz bounds that).
	const namespaces = `"namespaces":[{"type":"pid"},{"type":"network"},{"type":"ipc"},{"type":"uts"},{"type":"mount"}]`
	for _, seed := range []string{
		`{"process":{"capabilities":{"bounding":["CAP_NET_RAW","CAP_KILL"],"ambient":["CAP_KILL"],"inheritable":["CAP_KILL"]}},"linux":{` + namespaces + `}}`,
		`{"mounts":[{"destination":"/sys","type":"sysfs","options":["rw"]},{"destination":"/x","type":"bind","source":"/run"}],"linux":{` + namespaces + `}}`,
		`{"linux":{` + namespaces + `,"seccomp":{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":1,"op":"SCMP_CMP_NE"}]}]}}}`,
		`{"linux":{` + namespaces + `,"sysctl":{"net.a":"1"},"resources":{"devices":[{"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"}]},"maskedPaths":["/proc/kcore"]}}`,
	} {
		f.Add([]byte(seed))
	}
	engines, err := filepath.Glob("testdata/*.json")
	if err != nil || len(engines) == 0 {
		f.Fatalf("no specs of engines: %v", err)
	}
	for _, name := range engines {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s specs.Spec
		if json.Unmarshal(data, &s) != nil {
			return
		}
		p := agent()
		plan, err := PlanContainer(&s, p, hostOf(&s))
		if err != nil {
			return
		}
		checkWithin(t, plan, p)
		again, err := PlanContainer(plan.Spec, p, hostOf(plan.Spec))
		if err != nil {
			t.Fatalf("a hardened spec is refused: %v", err)
		}
		if plan.Hash() != again.Hash() {
			t.Errorf("hardening twice changes the plan:\n%s\n%s", plan, again)
		}
	})
}

func checkWithin(t *testing.T, plan *Plan, p *Profile) {
	t.Helper()
	if process := plan.Spec.Process; process != nil {
		c := process.Capabilities
		if c == nil {
			c = &specs.LinuxCapabilities{}
		}
		for _, name := range slices.Concat(c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient) {
			if !slices.Contains(p.Capabilities, name) {
				t.Errorf("capability %s", name)
			}
		}
		if !process.NoNewPrivileges {
			t.Error("no_new_privs is off")
		}
	}
	if !slices.ContainsFunc(plan.Seccomp, func(f SeccompFilter) bool { return f.Name == p.Name && f.Default.Do == DoErrno }) {
		t.Error("no filter of ours")
	}
	hidden := slices.Concat(plan.Spec.Linux.MaskedPaths, plan.Spec.Linux.ReadonlyPaths)
	for _, want := range maskedPaths() {
		if !slices.Contains(hidden, want) {
			t.Errorf("%s is not masked", want)
		}
	}
}
