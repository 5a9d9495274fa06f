package profiles

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
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
	// Environment, Exec, Trust and Evidence are the parts that say something about each process.
	Environment Environment `json:"environment,omitzero"`
	Exec        Exec        `json:"exec,omitzero"`
	Trust       Trust       `json:"trust,omitzero"`
	Evidence    Evidence    `json:"evidence,omitzero"`
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

// Host lists what of the host a spec may ask for although it is beyond an engine's defaults.
type Host struct {
	Namespaces []specs.LinuxNamespaceType `json:"namespaces,omitempty"`
	// Mounts are host paths whose refusal as a bind source is lifted, with all below them.
	Mounts  []string `json:"mounts,omitempty"`
	Devices []Device `json:"devices,omitempty"`
	// Sysctls are names that may be set beyond the namespaced ones.
	Sysctls []string `json:"sysctls,omitempty"`
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
