package profiles

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestRehearse_All: a rehearsal names everything that would be refused, not only what a plan meets first, and changes
// nothing.
func TestRehearse_All(t *testing.T) {
	spec, p := loadSpec(t, "docker"), builtin(t, NameAgent)
	host := hostOf(spec)
	if got := Rehearse(spec, p, host); slices.ContainsFunc(got.Notes, func(n Note) bool { return n.Rule == ruleWarn }) {
		t.Errorf("the engine's defaults would be refused: %v", got.Notes)
	}
	dropNamespace(spec, specs.PIDNamespace)
	dropNamespace(spec, specs.UTSNamespace)
	spec.Process.Capabilities.Bounding = append(spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN", "CAP_NET_ADMIN")
	spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229})
	spec.Linux.Sysctl = map[string]string{"kernel.panic": "1", "vm.swappiness": "1", "net.ipv4.ip_forward": "1"}
	for _, source := range []string{"/", "/proc"} {
		spec.Mounts = append(spec.Mounts, bind(source))
		host.Mounts = append(host.Mounts, MountFacts{Path: source, Mode: unix.S_IFDIR})
	}
	spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/x", Type: "ext4", Source: "/dev/sda"})
	host.Mounts = append(host.Mounts, MountFacts{})
	before := fmt.Sprint(spec.Linux, spec.Mounts, spec.Process)
	text := fmt.Sprint(Rehearse(spec, p, host).Notes)
	for _, want := range []string{
		"namespaces pid", "namespaces uts", "CAP_SYS_ADMIN", "CAP_NET_ADMIN", "/dev/fuse", "kernel.panic", "vm.swappiness", " from /:", " from /proc", `type "ext4"`,
	} {
		if strings.Count(text, want) == 0 {
			t.Errorf("nothing about %s in %s", want, text)
		}
	}
	if strings.Contains(text, "ip_forward") || !strings.Contains(text, "would be refused: ") {
		t.Error(text)
	}
	if fmt.Sprint(spec.Linux, spec.Mounts, spec.Process) != before {
		t.Error("the spec was changed")
	}
}

func TestRehearseExec(t *testing.T) {
	in := &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_SYS_ADMIN"}}}
	if got := fmt.Sprint(RehearseExec(in, builtin(t, NameAgent))); !strings.Contains(got, "would be refused: ") {
		t.Error(got)
	}
	if got := fmt.Sprint(RehearseExec(&specs.Process{}, builtin(t, NameAgent))); !strings.Contains(got, "would be so: ") {
		t.Error(got)
	}
}

func TestLogged(t *testing.T) {
	p := agent()
	f := agentFilter(p, "amd64")
	before := *f
	got := logged(f)
	for _, a := range append([]SeccompAction{got.BadArch, got.Default}, actions(got.Rules)...) {
		if a.Do != DoAllow && a.Do != DoLog {
			t.Errorf("%v refuses", a)
		}
	}
	if got.Unknown != nil || len(got.Refuse) > 0 || got.Default.Do != DoLog {
		t.Errorf("it refuses: %+v", got)
	}
	if got.Key() == f.Key() || !reflect.DeepEqual(before, *f) {
		t.Error("the filter itself was changed, or has the same key")
	}
}

func actions(rules []SeccompRule) []SeccompAction {
	var out []SeccompAction
	for i := range rules {
		out = append(out, rules[i].Action)
	}
	return out
}
