package cgroup

import (
	"fmt"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
)

// deviceAllow is one element of DeviceAllow=, D-Bus type (ss).
type deviceAllow struct{ Path, Access string }

// systemdDeviceProperties tells systemd the device rules, because systemd writes its own idea of them again on every
// daemon-reload (v1) and would then allow every device. What systemd can't say (deny-lists, "any major, minor n") is left
// stricter there on v1 until the cgroup's own rules, written afterwards, replace it; on v2 both hold.
//
// Source: systemd.resource-control(5), DeviceAllow=; paths need not exist since systemd 240, which is older than any
// distribution with our minimum kernel.
func systemdDeviceProperties(r *cgroups.Resources, _ int) ([]dbus.Property, error) {
	if r.SkipDevices || len(r.Devices) == 0 {
		return nil, nil
	}
	prop := func(name string, value any) dbus.Property {
		return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
	}
	// An empty list first clears what the unit had: DeviceAllow= appends.
	props := []dbus.Property{prop("DeviceAllow", []deviceAllow{})}
	if r.Devices[0].Allow {
		return append(props, prop("DevicePolicy", "auto")), nil
	}
	var list []deviceAllow
	for _, rule := range r.Devices[1:] {
		if path, ok := systemdDevice(rule); ok {
			list = append(list, deviceAllow{path, string(rule.Permissions)})
		}
	}
	return append(props, prop("DevicePolicy", "strict"), prop("DeviceAllow", list)), nil
}

func systemdDevice(rule *devices.Rule) (string, bool) {
	kind := "char"
	if rule.Type == devices.BlockDevice {
		kind = "block"
	}
	switch {
	case rule.Major == devices.Wildcard && rule.Minor == devices.Wildcard:
		return kind + "-*", true
	case rule.Major == devices.Wildcard:
		return "", false
	case rule.Minor == devices.Wildcard:
		return fmt.Sprintf("%s-%d", kind, rule.Major), true
	}
	return fmt.Sprintf("/dev/%s/%d:%d", kind, rule.Major, rule.Minor), true
}
