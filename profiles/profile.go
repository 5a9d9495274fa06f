package profiles

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/netns"
)

// Profile is what one class of task may do: intent, as DESIGN's YAML has it. It is plain data that survives JSON, and
// the zero value grants nothing.
type Profile struct {
	Name        string `json:"name"`
	Extends     string `json:"extends,omitempty"`
	Description string `json:"description,omitempty"`
	// Unrestricted turns every rule of ours off: the spec is followed as runc would. Only the built-in none has it.
	Unrestricted bool `json:"unrestricted,omitempty"`
	// Capabilities that a process may have, as CAP_ names: an upper bound, never an addition to the spec.
	Capabilities []string   `json:"capabilities,omitempty"`
	Syscalls     Syscalls   `json:"syscalls,omitzero"`
	Filesystem   Filesystem `json:"filesystem,omitzero"`
	Network      Network    `json:"network,omitzero"`
	Host         Host       `json:"host,omitzero"`
	Limits       Limits     `json:"limits,omitzero"`
	// Landlock says what happens on a kernel that can't enforce the file system part.
	Landlock LandlockMode `json:"landlock,omitempty"`
}

// Syscalls widens or narrows the filter of the built-in list. The filter is for the native ABI: 32-bit and x32 calls
// answer ENOSYS (socketcall through int 0x80 would hide a socket's family).
type Syscalls struct {
	Packs []Pack `json:"packs,omitempty"`
	// Allow and Deny are names. Deny wins; a denied syscall answers EPERM.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// Filesystem lists paths inside the container; each covers what is below it. "$HOME", "~" and "$WORKSPACE" at the
// start of a path are expanded. Hiding and overlaying are not compiled yet, so there are no fields for them.
type Filesystem struct {
	Read    []string `json:"read,omitempty"`
	Execute []string `json:"execute,omitempty"`
	// Write implies Read.
	Write []string `json:"write,omitempty"`
}

// NetworkMode says whose network a container may have.
type NetworkMode string

// Network modes. The empty mode is NetworkNone.
const (
	NetworkNone   NetworkMode = "none"
	NetworkEngine NetworkMode = "engine"
	NetworkHost   NetworkMode = "host"
)

// Network is the network part of a profile.
type Network struct {
	Mode NetworkMode `json:"mode,omitempty"`
	// AllowPrivate lists private ranges that NetworkEngine reaches: the ranges of a cluster, say.
	AllowPrivate []netip.Prefix `json:"allowPrivate,omitempty"`
}

// Host lists what of the host a spec may ask for although it is beyond an engine's defaults.
type Host struct {
	Namespaces []specs.LinuxNamespaceType `json:"namespaces,omitempty"`
	// Mounts are host paths whose refusal as a bind source is lifted, with all below them.
	Mounts  []string `json:"mounts,omitempty"`
	Devices []Device `json:"devices,omitempty"`
	// Sysctls are names that may be set beyond the namespaced ones.
	Sysctls []string `json:"sysctls,omitempty"`
}

// Limits are upper bounds for the spec's own; 0 is no bound.
type Limits struct {
	MemoryBytes int64   `json:"memoryBytes,omitempty"`
	PIDs        int64   `json:"pids,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
}

// LandlockMode says what happens where the kernel can't enforce a ruleset.
type LandlockMode string

// Landlock modes. The empty mode is LandlockRequired.
const (
	LandlockRequired   LandlockMode = "required"    // creation fails
	LandlockBestEffort LandlockMode = "best-effort" // what can be enforced is, with a note on the rest
	LandlockOff        LandlockMode = "off"
)

// Pack is a named set of widenings that belong together.
type Pack string

// The packs.
const (
	PackDebug      Pack = "debug"      // ptrace and reading other processes' memory
	PackSudo       Pack = "sudo"       // set-id programs: no_new_privs is off
	PackBrowser    Pack = "browser"    // user namespaces for Chromium's sandbox
	PackContainers Pack = "containers" // containers inside: mounts and all namespaces
)

func packs() []Pack { return []Pack{PackDebug, PackSudo, PackBrowser, PackContainers} }

// HasPack reports whether the profile includes the pack.
func (p *Profile) HasPack(k Pack) bool { return slices.Contains(p.Syscalls.Packs, k) }

// NoNewPrivs reports whether no_new_privs is forced on: in every profile but with the pack sudo.
func (p *Profile) NoNewPrivs() bool { return !p.Unrestricted && !p.HasPack(PackSudo) }

// Validate returns an error that names the field which is wrong.
func (p *Profile) Validate() error {
	if p.Name == "" {
		return errors.New("name: is empty")
	}
	if p.Unrestricted {
		return nil
	}
	for _, check := range []func() error{
		p.validateCapabilities, p.validateSyscalls, p.validateFilesystem, p.validateNetwork, p.validateHost, p.validateLimits,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	switch p.Landlock {
	case "", LandlockRequired, LandlockBestEffort, LandlockOff:
		return nil
	}
	return fmt.Errorf("enforcement.landlock: %q is not %s, %s or %s", p.Landlock, LandlockRequired, LandlockBestEffort, LandlockOff)
}

func (p *Profile) validateCapabilities() error {
	for _, c := range p.Capabilities {
		if !knownCapability(c) {
			return fmt.Errorf("capabilities: %q is not a capability (want a name like CAP_CHOWN)", c)
		}
	}
	return nil
}

func (p *Profile) validateSyscalls() error {
	for _, k := range p.Syscalls.Packs {
		if !slices.Contains(packs(), k) {
			return fmt.Errorf("syscalls.packs: %q is not one of %v", k, packs())
		}
	}
	for _, n := range slices.Concat(p.Syscalls.Allow, p.Syscalls.Deny) {
		if !validSyscallName(n) {
			return fmt.Errorf("syscalls: %q is not a syscall's name", n)
		}
	}
	return nil
}

func (p *Profile) validateFilesystem() error {
	for _, set := range []struct {
		field string
		paths []string
	}{{"read", p.Filesystem.Read}, {"execute", p.Filesystem.Execute}, {"write", p.Filesystem.Write}} {
		for _, unsafePath := range set.paths {
			if err := validatePath(unsafePath); err != nil {
				return fmt.Errorf("filesystem.%s: %w", set.field, err)
			}
		}
	}
	return nil
}

func validatePath(unsafePath string) error {
	rest := unsafePath
	for _, v := range []string{"$HOME", "$WORKSPACE", "~"} {
		if after, ok := strings.CutPrefix(rest, v); ok {
			if after == "" {
				return nil
			}
			rest = after
			break
		}
	}
	switch {
	case rest == "" || rest[0] != '/':
		return fmt.Errorf("path %q is not absolute and does not start with $HOME, ~ or $WORKSPACE", unsafePath)
	case strings.ContainsAny(rest, "*?[$\x00"):
		return fmt.Errorf("path %q has a pattern or a variable: a path covers all below it", unsafePath)
	case path.Clean(rest) != rest:
		return fmt.Errorf("path %q is not clean: write %q", unsafePath, strings.TrimSuffix(unsafePath, rest)+path.Clean(rest))
	}
	return nil
}

func (p *Profile) validateNetwork() error {
	switch p.Network.Mode {
	case "", NetworkNone, NetworkEngine, NetworkHost:
	default:
		return fmt.Errorf("network.mode: %q is not %s, %s or %s", p.Network.Mode, NetworkNone, NetworkEngine, NetworkHost)
	}
	if len(p.Network.AllowPrivate) == 0 {
		return nil
	}
	if p.Network.Mode == "" || p.Network.Mode == NetworkNone {
		return fmt.Errorf("network.allowPrivate: means nothing with the mode %s", NetworkNone)
	}
	if err := (netns.Policy{Mode: netns.ModeEngine, AllowPrivate: p.Network.AllowPrivate}).Validate(); err != nil {
		return fmt.Errorf("network.allowPrivate: %w", err)
	}
	return nil
}

func (p *Profile) validateHost() error {
	for _, n := range p.Host.Namespaces {
		if !slices.Contains(hostNamespaces(), n) {
			return fmt.Errorf("host.namespaces: %q is not one of %v", n, hostNamespaces())
		}
	}
	for _, m := range p.Host.Mounts {
		if !path.IsAbs(m) || path.Clean(m) != m {
			return fmt.Errorf("host.mounts: %q is not an absolute, clean path", m)
		}
	}
	for _, d := range p.Host.Devices {
		if err := d.validate(); err != nil {
			return fmt.Errorf("host.devices: %w", err)
		}
	}
	return nil
}

func (p *Profile) validateLimits() error {
	l := p.Limits
	if l.MemoryBytes < 0 || l.PIDs < 0 || !(l.CPUs >= 0 && l.CPUs <= 1<<16) { // not a number is neither
		return errors.New("limits: out of range")
	}
	return nil
}
