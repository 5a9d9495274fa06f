package container

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns"
)

// validateNetDevices checks the names, and that there is a namespace to move devices to. Source: runtime-spec 1.3.0,
// config-linux.md "Network Devices".
func validateNetDevices(s *specs.Spec) error {
	if len(s.Linux.NetDevices) == 0 {
		return nil
	}
	if !slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace }) {
		return invalid("linux.netDevices", "needs a network namespace that is not the host's")
	}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.Linux.NetDevices)) {
		field := "linux.netDevices " + name
		if !deviceName(name) || strings.Contains(name, "%") {
			return invalid(field, "is not the name of a network device")
		}
		to := s.Linux.NetDevices[name].Name
		if to == "" {
			to = name
		}
		if !deviceName(to) || strings.Count(to, "%") != strings.Count(to, "%d") || strings.Count(to, "%") > 1 {
			return invalid(field+".name", fmt.Sprintf("%q is not the name of a network device", to))
		}
		if seen[to] && !strings.Contains(to, "%") {
			return invalid(field+".name", fmt.Sprintf("%q is given to two devices", to))
		}
		seen[to] = true
	}
	return nil
}

// deviceName is the kernel's dev_valid_name.
func deviceName(s string) bool {
	return s != "" && len(s) < unix.IFNAMSIZ && s != "." && s != ".." && !strings.ContainsAny(s, "/:\x00 \t\n\v\f\r")
}

// moveDevices gives the host's devices to the container.
func moveDevices(ns *os.File, devices map[string]specs.LinuxNetDevice) error {
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		if err := netns.MoveLink(ns, name, devices[name].Name); err != nil {
			return fmt.Errorf("linux.netDevices: %w", err)
		}
	}
	return nil
}
