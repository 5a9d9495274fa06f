package profiles

import "fmt"

// Names of the built-in profiles.
const (
	NameAgent = "agent"
	NameNone  = "none"
	// DefaultName is the profile of a container for which nobody chose one.
	DefaultName = NameAgent
)

// Builtin returns a new copy of a built-in profile.
func Builtin(name string) (*Profile, error) {
	switch name {
	case NameAgent:
		return agent(), nil
	case NameNone:
		return &Profile{
			Name: NameNone, Unrestricted: true, Network: Network{Mode: NetworkHost}, Landlock: LandlockOff,
			Description: "the spec as the engine wrote it, without any policy of ours",
		}, nil
	}
	return nil, fmt.Errorf("profile %q: not built in, want %q or %q", name, NameAgent, NameNone)
}

// agent is the default: an image that runs under Docker's defaults runs unmodified, a set-id program such as sudo
// excepted. The file system is granted as a whole, so Landlock adds device nodes and ioctls of devices and little else.
func agent() *Profile {
	return &Profile{
		Name:         NameAgent,
		Description:  "unreviewed code in a container as engines make them, with the kernel's attack surface cut",
		Capabilities: agentCapabilities(),
		Filesystem:   Filesystem{Read: []string{"/"}, Execute: []string{"/"}, Write: []string{"/"}},
		Network:      Network{Mode: NetworkEngine},
		Landlock:     LandlockRequired,
	}
}
