package cgroup

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"golang.org/x/sys/unix"
)

// setDevicesV1 writes the rules of planDevices into the devices cgroup at path, which holds no process yet. Writing the
// default first clears what an existing cgroup had. Source: Linux admin-guide/cgroup-v1/devices.rst.
func setDevicesV1(path string, r *cgroups.Resources) error {
	if r.SkipDevices || len(r.Devices) == 0 {
		return nil
	}
	var allow, deny *os.File
	defer func() { allow.Close(); deny.Close() }()
	for _, rule := range r.Devices {
		file, name := &deny, "devices.deny"
		if rule.Allow {
			file, name = &allow, "devices.allow"
		}
		if *file == nil {
			f, err := cgroups.OpenFile(path, name, unix.O_WRONLY)
			if err != nil {
				return fmt.Errorf("open %s: %w", name, err)
			}
			*file = f
		}
		if err := writeDeviceRule(*file, rule); err != nil {
			return err
		}
	}
	return nil
}

func writeDeviceRule(file *os.File, rule *devices.Rule) error {
	line := rule.CgroupString()
	if rule.Type == devices.WildcardDevice {
		line = "a"
	}
	_, err := file.WriteString(line)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("write device rule %q: the parent cgroup doesn't allow it: %w", line, err)
	}
	if err != nil {
		return fmt.Errorf("write device rule %q: %w", line, err)
	}
	return nil
}
