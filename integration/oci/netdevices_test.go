package oci

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestNetDevices moves devices of the host into a container: with their lasting addresses, up, under another name if asked
// for. Debian's runc is too old for it.
func TestNetDevices(t *testing.T) {
	_, p := harness.Peers(t)
	for _, tc := range []struct {
		name    string
		devices map[string]specs.LinuxNetDevice
		want    string // of the container's output, or of the error
		exit    int
	}{
		{"by its name", map[string]specs.LinuxNetDevice{"asdev0": {}}, `asdev0@\S+ .*UP.*inet 192.0.2.7/24 .*inet6 2001:db8::7/64 `, 0},
		{"renamed", map[string]specs.LinuxNetDevice{"asdev0": {Name: "inside0"}}, `inside0@\S+ .*UP.*inet 192.0.2.7/24 `, 0},
		{"by a template", map[string]specs.LinuxNetDevice{"asdev0": {Name: "eth%d"}}, `eth0@\S+ .*UP.*inet 192.0.2.7/24 `, 0},
		{"a clash", map[string]specs.LinuxNetDevice{"asdev0": {Name: "lo"}}, `device "asdev0": the container has a device "lo" already`, 1},
		{"not there", map[string]specs.LinuxNetDevice{"asdev9": {}}, `device "asdev9": no such device`, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			box.MustRun(t, "sh", "-ec", "ip link add asdev0 type veth peer name aspeer0; ip addr add 192.0.2.7/24 dev asdev0; ip -6 addr add 2001:db8::7/64 dev asdev0 nodad; ip link set asdev0 down")
			t.Cleanup(func() { box.Run(t, harness.Cmd{Args: []string{"ip", "link", "del", "asdev0"}}) })
			r := plain(t, p).RunSpec(t, func(s *specs.Spec) {
				s.Linux.NetDevices = tc.devices
				s.Process.Args = []string{"sh", "-c", "ip addr | tr '\\n' ' '"}
			})
			if msg := harness.Exits(tc.exit)(r, r); msg != "" {
				t.Errorf("%s\n%v", msg, r)
			}
			check := harness.Prints(tc.want)
			if tc.exit != 0 {
				check = harness.ErrorHas(tc.want)
			}
			if msg := check(r, r); msg != "" {
				t.Errorf("%s\n%v", msg, r)
			}
			gone := box.Run(t, harness.Cmd{Args: []string{"ip", "link", "show", "asdev0"}}).Exit != 0
			if gone != (tc.exit == 0) {
				t.Errorf("the host's device is gone: %t", gone)
			}
		})
	}
	t.Run("refused by the default profile", func(t *testing.T) {
		r := box.Bare(t, p).RunSpec(t, func(s *specs.Spec) { s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"lo": {}} })
		if r.Exit != 1 || !strings.Contains(r.Stderr, "refused: linux.netDevices") {
			t.Errorf("want a refusal:\n%v", r)
		}
	})
}
