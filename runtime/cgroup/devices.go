package cgroup

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// access is a set of device operations, numbered as in the kernel's BPF_DEVCG_ACC_*.
type access uint8

const (
	accessMknod access = 1 << iota
	accessRead
	accessWrite

	accessAll = accessMknod | accessRead | accessWrite
)

// deviceKey is what one exception is about. Major and minor may be devices.Wildcard.
type deviceKey struct {
	kind         devices.Type
	major, minor int64
}

// deviceSet is the state of a devices cgroup: a default and its exceptions.
type deviceSet struct {
	allow      bool
	exceptions map[deviceKey]access
}

// planDevices compiles the rules of a configuration, and after them those for the devices that every container has, into
// a canonical list: one rule of type a for the default, then its exceptions, sorted. Applied in order to any cgroup it
// gives the same state, and the filters for v1, v2 and systemd are all made of it.
//
// A configuration without rules denies everything but those devices. One that denies such a device by its very number
// (type c, 10:200) doesn't get it; neither does a deny-list. Source: runtime-spec 1.3.0, config-linux.md, Allowed Device
// list and Default Devices; which rules are appended: runc, specconv.AllowedDevices.
func planDevices(in []specs.LinuxDeviceCgroup) ([]*devices.Rule, error) {
	state := &deviceSet{exceptions: map[deviceKey]access{}}
	denied := map[deviceKey]bool{}
	for i := range in {
		key, err := state.applySpec(&in[i])
		if err != nil {
			return nil, badField("linux.resources.devices["+strconv.Itoa(i)+"]", "%v", err)
		}
		denied[key] = !in[i].Allow
	}
	if state.allow {
		return state.rules(), nil
	}
	for _, d := range defaultDevices() {
		if key := (deviceKey{d.kind, d.major, d.minor}); !denied[key] {
			state.exceptions[key] |= d.may
		}
	}
	return state.rules(), nil
}

type defaultDevice struct {
	kind         devices.Type
	major, minor int64
	may          access
}

func defaultDevices() []defaultDevice {
	const c, b, each = devices.CharDevice, devices.BlockDevice, devices.Wildcard
	return []defaultDevice{
		{c, each, each, accessMknod}, {b, each, each, accessMknod}, // making a node is no access to the device
		{c, 1, 3, accessAll}, {c, 1, 5, accessAll}, {c, 1, 7, accessAll}, // null, zero, full
		{c, 1, 8, accessAll}, {c, 1, 9, accessAll}, // random, urandom
		{c, 5, 0, accessAll}, {c, 5, 2, accessAll}, {c, 136, each, accessAll}, // tty, ptmx, pts
		{c, 10, 200, accessAll}, // net/tun: VPNs in containers rely on it (runc issue 4556)
	}
}

// applySpec applies one rule of the configuration and returns what it is about.
func (s *deviceSet) applySpec(rule *specs.LinuxDeviceCgroup) (deviceKey, error) {
	key := deviceKey{major: devices.Wildcard, minor: devices.Wildcard}
	may, err := parseAccess(rule.Access)
	if err != nil {
		return key, err
	}
	set(&key.major, rule.Major)
	set(&key.minor, rule.Minor)
	if key.major < devices.Wildcard || key.major > 1<<31-1 || key.minor < devices.Wildcard || key.minor > 1<<31-1 {
		return key, fmt.Errorf("%d:%d is no device number", key.major, key.minor)
	}
	switch rule.Type {
	case "", "a":
		return key, s.applyAll(key, may, rule.Allow)
	case "c", "u":
		key.kind = devices.CharDevice
	case "b":
		key.kind = devices.BlockDevice
	default:
		return key, fmt.Errorf("type %q is not a, b, c or u", rule.Type)
	}
	return key, s.apply(key, may, rule.Allow)
}

// applyAll applies a rule of type a. The kernel ignores its numbers and access, so "a 1:3 r" written as it stands would
// allow every device: numbers are refused, and a part of rwm becomes one rule each for c and b.
func (s *deviceSet) applyAll(key deviceKey, may access, allow bool) error {
	if key.major != devices.Wildcard || key.minor != devices.Wildcard {
		return fmt.Errorf("type a with device number %d:%d: say c or b", key.major, key.minor)
	}
	if may == accessAll {
		s.allow = allow
		clear(s.exceptions)
		return nil
	}
	for _, kind := range []devices.Type{devices.CharDevice, devices.BlockDevice} {
		key.kind = kind
		if err := s.apply(key, may, allow); err != nil {
			return err
		}
	}
	return nil
}

// apply adds an exception, or takes one back if the rule says what the default says. The kernel's v1 list takes back only
// what matches exactly and answers success otherwise, so a hole in a wider rule has to be refused here: "deny c 1:1"
// after "allow c 1:*" would leave it allowed.
func (s *deviceSet) apply(key deviceKey, may access, allow bool) error {
	if allow != s.allow {
		s.exceptions[key] |= may
		return nil
	}
	for other, has := range s.exceptions {
		if other != key && other.overlaps(key) && !key.covers(other) && has&may != 0 {
			return fmt.Errorf("%c %s:%s cuts a hole into the rule for %s:%s, which cgroups can't express",
				key.kind, number(key.major), number(key.minor), number(other.major), number(other.minor))
		}
	}
	for other := range s.exceptions {
		if !key.covers(other) {
			continue
		}
		if s.exceptions[other] &^= may; s.exceptions[other] == 0 {
			delete(s.exceptions, other)
		}
	}
	return nil
}

func (k deviceKey) overlaps(o deviceKey) bool {
	same := func(a, b int64) bool { return a == b || a == devices.Wildcard || b == devices.Wildcard }
	return k.kind == o.kind && same(k.major, o.major) && same(k.minor, o.minor)
}

func (k deviceKey) covers(o deviceKey) bool {
	within := func(a, b int64) bool { return a == b || a == devices.Wildcard }
	return k.kind == o.kind && within(k.major, o.major) && within(k.minor, o.minor)
}

// rules returns the canonical list.
func (s *deviceSet) rules() []*devices.Rule {
	out := []*devices.Rule{{
		Type: devices.WildcardDevice, Major: devices.Wildcard, Minor: devices.Wildcard,
		Permissions: accessAll.permissions(), Allow: s.allow,
	}}
	for key, may := range s.exceptions {
		out = append(out, &devices.Rule{
			Type: key.kind, Major: key.major, Minor: key.minor, Permissions: may.permissions(), Allow: !s.allow,
		})
	}
	slices.SortFunc(out[1:], func(a, b *devices.Rule) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	})
	return out
}

func parseAccess(s string) (access, error) {
	var may access
	for _, c := range s {
		switch c {
		case 'r':
			may |= accessRead
		case 'w':
			may |= accessWrite
		case 'm':
			may |= accessMknod
		default:
			return 0, fmt.Errorf("access %q has letters other than r, w and m", s)
		}
	}
	if may == 0 {
		return 0, fmt.Errorf("access is empty")
	}
	return may, nil
}

func (a access) permissions() devices.Permissions {
	var s []byte
	for _, bit := range []struct {
		may    access
		letter byte
	}{{accessRead, 'r'}, {accessWrite, 'w'}, {accessMknod, 'm'}} {
		if a&bit.may != 0 {
			s = append(s, bit.letter)
		}
	}
	return devices.Permissions(s)
}

func number(n int64) string {
	if n == devices.Wildcard {
		return "*"
	}
	return strconv.FormatInt(n, 10)
}
