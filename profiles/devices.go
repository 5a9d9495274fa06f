package profiles

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Device names one device, or with a number of -1 all of them.
type Device struct {
	Type   string `json:"type"` // "c" or "b"
	Major  int64  `json:"major"`
	Minor  int64  `json:"minor"`
	Access string `json:"access"` // of "rwm"
}

const anyNumber = -1

// ParseDevice reads "c 10:229 rw"; "*" stands for every number.
func ParseDevice(s string) (Device, error) {
	f := strings.Fields(s)
	if len(f) != 3 {
		return Device{}, fmt.Errorf("device %q: want TYPE MAJOR:MINOR ACCESS, as in \"c 10:229 rw\"", s)
	}
	major, minor, _ := strings.Cut(f[1], ":")
	d := Device{Type: f[0], Access: f[2]}
	for _, n := range []struct {
		text string
		into *int64
	}{{major, &d.Major}, {minor, &d.Minor}} {
		if n.text == "*" {
			*n.into = anyNumber
			continue
		}
		v, err := strconv.ParseInt(n.text, 10, 32)
		if err != nil || v < 0 {
			return Device{}, fmt.Errorf("device %q: %q is not a device number", s, n.text)
		}
		*n.into = v
	}
	return d, d.validate()
}

func (d Device) validate() error {
	switch {
	case d.Type != "c" && d.Type != "b":
		return fmt.Errorf("device type %q: want c or b", d.Type)
	case d.Access == "" || strings.Trim(d.Access, "rwm") != "":
		return fmt.Errorf("device access %q: want some of r, w, m", d.Access)
	case d.Major < anyNumber || d.Minor < anyNumber:
		return fmt.Errorf("device number %d:%d: negative", d.Major, d.Minor)
	case d.Major == anyNumber && d.Minor != anyNumber:
		return fmt.Errorf("device %s: a minor number without a major one", d)
	}
	return nil
}

func (d Device) String() string {
	number := func(n int64) string {
		if n == anyNumber {
			return "*"
		}
		return strconv.FormatInt(n, 10)
	}
	return d.Type + " " + number(d.Major) + ":" + number(d.Minor) + " " + d.Access
}

// key is what a profile has to set for the device.
func (d Device) key() string { return fmt.Sprintf("host: {devices: [%q]}", d) }

// covers reports whether d includes all of o.
func (d Device) covers(o Device) bool {
	return d.Type == o.Type && (d.Major == anyNumber || d.Major == o.Major) && (d.Minor == anyNumber || d.Minor == o.Minor) &&
		strings.Trim(o.Access, d.Access) == ""
}

func (p *Profile) deviceGranted(d Device) bool {
	return slices.ContainsFunc(p.Host.Devices, func(g Device) bool { return g.covers(d) })
}

// defaultDevice reports whether every container has the device. Source: runtime-spec 1.3.0, config-linux.md "Default
// Devices".
func defaultDevice(d Device) bool {
	if d.Type != "c" {
		return false
	}
	switch d.Major {
	case 1:
		switch d.Minor {
		case 3, 5, 7, 8, 9: // null, zero, full, random, urandom
			return true
		}
	case 5:
		switch d.Minor {
		case 0, 1, 2: // tty, console, ptmx
			return true
		}
	case 136: // pseudo-terminals
		return true
	}
	return false
}

// whyDevice says what a refused device is. Source: Linux Documentation/admin-guide/devices.txt.
func whyDevice(d Device) string {
	if d.Type == "b" {
		return "a block device is the host's file systems"
	}
	switch [2]int64{d.Major, d.Minor} {
	case [2]int64{1, 1}, [2]int64{1, 2}:
		return "/dev/mem and /dev/kmem are the host's memory"
	case [2]int64{1, 4}:
		return "/dev/port is the host's I/O ports"
	case [2]int64{1, 11}:
		return "/dev/kmsg is the host's kernel log"
	case [2]int64{10, 200}:
		return "/dev/net/tun makes network links that no rule knows"
	case [2]int64{10, 229}:
		return "/dev/fuse makes file systems that answer as they like"
	case [2]int64{10, 232}:
		return "/dev/kvm is a virtual machine monitor's worth of kernel"
	}
	return "a device is a driver's worth of kernel, and no namespace separates it"
}

// checkDevices judges the device nodes and the device rules of a spec. A rule for all devices comes first: it says more
// about what was asked for than the first of all nodes would.
func (p *Profile) checkDevices(l *specs.Linux) error {
	var rules []specs.LinuxDeviceCgroup
	if l.Resources != nil {
		rules = l.Resources.Devices
	}
	for i := range rules {
		if r := &rules[i]; r.Allow && (r.Type == "" || r.Type == "a") {
			if err := p.checkDeviceRule(i, r); err != nil {
				return err
			}
		}
	}
	for i := range l.Devices {
		in := &l.Devices[i]
		d := Device{Type: in.Type, Major: in.Major, Minor: in.Minor, Access: "rw"}
		switch in.Type {
		case "p":
			continue // a FIFO
		case "u":
			d.Type = "c"
		}
		if !defaultDevice(d) && !p.deviceGranted(d) {
			return p.refuse(fmt.Sprintf("linux.devices[%d] %s (%s)", i, in.Path, d), whyDevice(d), d.key())
		}
	}
	for i := range rules {
		if err := p.checkDeviceRule(i, &rules[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *Profile) checkDeviceRule(index int, in *specs.LinuxDeviceCgroup) error {
	// "m" makes a node, which needs CAP_MKNOD and is no use without opening it.
	access := strings.ReplaceAll(in.Access, "m", "")
	if in.Access == "" {
		access = "rw"
	}
	if !in.Allow || access == "" {
		return nil
	}
	number := func(n *int64) int64 {
		if n == nil || *n < 0 {
			return anyNumber
		}
		return *n
	}
	d := Device{Type: in.Type, Major: number(in.Major), Minor: number(in.Minor), Access: access}
	if in.Type == "" || in.Type == "a" {
		c, b := Device{"c", d.Major, d.Minor, access}, Device{"b", d.Major, d.Minor, access}
		if p.deviceGranted(c) && p.deviceGranted(b) {
			return nil
		}
		return p.refuse(fmt.Sprintf("linux.resources.devices[%d] allows all devices", index), "privileged: every driver of the host",
			fmt.Sprintf("host: {devices: [%q, %q]}", c, b))
	}
	if defaultDevice(d) && (d.Major == 136 || d.Minor != anyNumber) || p.deviceGranted(d) {
		return nil
	}
	return p.refuse(fmt.Sprintf("linux.resources.devices[%d] allows %s", index, d), whyDevice(d), d.key())
}
