package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/profiles"
)

// ConfigDir holds what the host's administrator has decided. The administrator writes config.toml and has it checked
// and compiled to config.json by `agentsafectl config apply`: the runtime is started for every operation of a container,
// and a TOML parser would cost each start more than the configuration.
const (
	ConfigDir      = "/etc/agentsafe"
	ConfigSource   = "config.toml"
	ConfigCompiled = "config.json"
)

// HostConfig is the host's configuration, as config.json has it.
type HostConfig struct {
	// Default is the profile of containers for which nobody chose one; "" is agent.
	Default string `json:"default,omitempty"`
	// Selectable are profiles that annotations may name although they grant more than the one in force.
	Selectable []string `json:"selectable,omitempty"`
	// Handlers are further names of profiles: of an engine's runtime, of a shim's link.
	Handlers []Handler `json:"handlers,omitempty"`
	// Landlock is "best-effort" or "" (required).
	Landlock string `json:"landlock,omitempty"`
	// Network bounds and completes what profiles of the mode gateway say.
	Network HostNetwork `json:"network,omitzero"`
	// Record is what of containers may be recorded.
	Record HostRecord `json:"record,omitzero"`
	// WorktreeVariable lets a variable ask for a worktree, which an image can set as well: it makes a folder on the host.
	WorktreeVariable bool `json:"worktreeVariable,omitempty"`
	// Source is what config.toml was when it was compiled: its size and the time of its last change.
	Source ConfigStamp `json:"source"`
}

// HostNetwork is what the administrator says for all gateways of this host.
type HostNetwork struct {
	// DialFrom is "host" if a container without a network of its own may go out through the host's, where its profile
	// says nothing about that; "" and "container" mean that it may not.
	DialFrom string `json:"dialFrom,omitempty"`
	// AllowWhileRunning are rules that `agentsafectl network allow` may add beyond the profile of the runtime's handler.
	AllowWhileRunning []string `json:"allowWhileRunning,omitempty"`
	// Proxy is the HTTP proxy that gateways go out by, as http://HOST:PORT or https://HOST:PORT; "" is none. NoProxy are the names, *.suffixes
	// and ranges of addresses that are reached without it, ProxyAuth a file with USER:PASSWORD for it.
	Proxy     string   `json:"proxy,omitempty"`
	NoProxy   []string `json:"noProxy,omitempty"`
	ProxyAuth string   `json:"proxyAuth,omitempty"`
	// InspectCertificate and InspectKey are files in PEM of an authority of the administrator's, which lets profiles have
	// TLS inspected; "" keeps that off, whatever a profile says.
	InspectCertificate string `json:"inspectCertificate,omitempty"`
	InspectKey         string `json:"inspectKey,omitempty"`
}

func (n *HostNetwork) check() error {
	switch n.DialFrom {
	case "", dialContainer, dialHost:
	default:
		return fmt.Errorf("dialFrom: %q is neither %q nor %q", n.DialFrom, dialContainer, dialHost)
	}
	if _, err := egress.Compile(egress.Config{Allow: n.AllowWhileRunning}); err != nil {
		return fmt.Errorf("allowWhileRunning: %w", err)
	}
	if _, err := n.outProxy(); err != nil {
		return err
	}
	return n.checkInspection()
}

// complete fills in where a profile leaves the choice to the host.
func (n *HostNetwork) complete(p *profiles.Profile) *profiles.Profile {
	if p.Unrestricted || p.Network.Mode != profiles.NetworkGateway || p.Network.DialFrom != "" || n.DialFrom == "" {
		return p
	}
	out := *p
	out.Network.DialFrom = n.DialFrom
	return &out
}

// ceiling is what may be allowed while a container runs: what the profile grants that the handler or the host's default
// gave it, before anybody's wishes tightened it, and AllowWhileRunning. nil is no bound but the classes of addresses that
// are always refused.
func (n *HostNetwork) ceiling(handler *profiles.Profile) *egress.Config {
	c := &egress.Config{}
	switch h := &handler.Network; {
	case handler.Unrestricted || h.Mode == profiles.NetworkHost:
		return nil
	case h.Mode == profiles.NetworkEngine:
		c.Allow = []string{"tcp://*:1-65535"}
		for _, p := range h.AllowPrivate {
			c.Allow = append(c.Allow, privateRule(p))
		}
	case h.Mode == profiles.NetworkGateway:
		c.Allow, c.Deny, c.RuleSets = slices.Clone(h.Allow), h.Deny, h.RuleSets
	}
	c.Allow = append(c.Allow, n.AllowWhileRunning...)
	return c
}

// privateRule is a rule of the gateway for all ports of a range.
func privateRule(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "tcp://[" + p.String() + "]:1-65535"
	}
	return "tcp://" + p.String() + ":1-65535"
}

// Handler gives a profile to a name.
type Handler struct {
	Name    string `json:"name"`
	Profile string `json:"profile"`
	// Enforcement is EnforceWarn or "".
	Enforcement Enforcement `json:"enforcement,omitempty"`
	// Record is the name of the recording of all containers of this handler; "" records none.
	Record string `json:"record,omitempty"`
}

// Enforcement says whether a profile holds.
type Enforcement string

// The ways to enforce. EnforceWarn is for hosts that are about to adopt a profile: containers get what they ask for, as
// under the profile none, and what the profile would have refused is logged.
const (
	EnforceAll  Enforcement = ""
	EnforceWarn Enforcement = "warn"
)

// ConfigStamp tells one version of config.toml from the next.
type ConfigStamp struct {
	Bytes   int64 `json:"bytes"`
	MtimeNS int64 `json:"mtimeNs"`
}

// Check returns an error that names the key which is wrong: a profile that there is not, or one that can't be used.
func (c *HostConfig) Check(dir string) error {
	seen := map[string]bool{}
	for _, h := range c.Handlers {
		if h.Name == "" || h.Profile == "" || seen[h.Name] {
			return fmt.Errorf("handlers.%s: want one profile for each name", h.Name)
		}
		seen[h.Name] = true
		if _, err := loadProfile(dir, h.Profile); err != nil {
			return fmt.Errorf("handlers.%s.profile: %w", h.Name, err)
		}
		if h.Record != "" {
			if err := checkRecordingName(h.Record); err != nil {
				return fmt.Errorf("handlers.%s.record: %w", h.Name, err)
			}
		}
		switch {
		case h.Enforcement != EnforceAll && h.Enforcement != EnforceWarn:
			return fmt.Errorf("handlers.%s.enforcement: %q is not %q; without the key the profile is enforced", h.Name, h.Enforcement, EnforceWarn)
		case h.Enforcement == EnforceWarn && h.Name == c.Default:
			return fmt.Errorf("default: %q only warns, which is never the default: who asks for it by its name gets it", h.Name)
		}
	}
	if _, err := loadProfile(dir, c.handler("")); err != nil {
		return fmt.Errorf("default: %w", err)
	}
	for _, name := range c.Selectable {
		if _, err := loadProfile(dir, name); err != nil {
			return fmt.Errorf("selectable: %w", err)
		}
	}
	for _, name := range c.Record.Names {
		if err := checkRecordingName(name); err != nil {
			return fmt.Errorf("record.names: %w", err)
		}
	}
	if err := c.Network.check(); err != nil {
		return fmt.Errorf("network.%w", err)
	}
	switch profiles.LandlockMode(c.Landlock) {
	case "", profiles.LandlockRequired, profiles.LandlockBestEffort:
		return nil
	case profiles.LandlockOff:
	}
	return fmt.Errorf("landlock: %q is neither %q nor %q", c.Landlock, profiles.LandlockRequired, profiles.LandlockBestEffort)
}

// handler returns the profile of a name, which is the name itself unless the configuration says otherwise.
func (c *HostConfig) handler(name string) string {
	if name == "" {
		name = c.Default
	}
	for _, h := range c.Handlers {
		if h.Name == name {
			return h.Profile
		}
	}
	return name
}

// enforcement is how the profile of a name is enforced.
func (c *HostConfig) enforcement(name string) Enforcement {
	for _, h := range c.Handlers {
		if h.Name == name && name != c.Default {
			return h.Enforcement
		}
	}
	return EnforceAll
}

// ReadHostConfig reads the host's configuration as new containers do.
func ReadHostConfig() (*HostConfig, error) { return readHostConfig(ConfigDir) }

// StampConfig returns the stamp of dir's config.toml; the zero stamp if there is none.
func StampConfig(dir string) (ConfigStamp, error) {
	var st unix.Stat_t
	err := unix.Stat(filepath.Join(dir, ConfigSource), &st)
	if errors.Is(err, unix.ENOENT) {
		return ConfigStamp{}, nil
	}
	if err != nil {
		return ConfigStamp{}, fmt.Errorf("read configuration of the host: %s: %w", ConfigSource, err)
	}
	return ConfigStamp{st.Size, st.Mtim.Nano()}, nil
}

// readHostConfig reads config.json. A config.toml that was changed and not compiled is an error: an administrator who
// tightened it must not believe that it holds.
func readHostConfig(dir string) (*HostConfig, error) {
	stamp, err := StampConfig(dir)
	if err != nil {
		return nil, err
	}
	c := &HostConfig{}
	data, err := readTrusted(filepath.Join(dir, ConfigCompiled))
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read configuration of the host: %w", err)
	default:
		if err := json.Unmarshal(data, c); err != nil {
			return nil, fmt.Errorf("read configuration of the host: %s: %w", filepath.Join(dir, ConfigCompiled), err)
		}
	}
	if c.Source != stamp {
		return nil, fmt.Errorf("read configuration of the host: %s is not what was applied: run `agentsafectl config apply`", filepath.Join(dir, ConfigSource))
	}
	return c, nil
}

// readTrusted reads a file that decides what containers may do. One that others than root could have written is refused.
func readTrusted(path string) ([]byte, error) {
	f, err := openTrusted(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxProfileBytes))
}

// openTrusted opens such a file; the caller closes it.
func openTrusted(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	const othersWrite = 0o022
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !byRoot(st.Uid) || st.Mode&othersWrite != 0 {
		f.Close()
		return nil, fmt.Errorf("%s is not a file that root alone can write", path)
	}
	return f, nil
}

// byRoot reports whether a file is the host's root's. In a user namespace that root has no id, and shows as the one that
// stands for all of those; there it is not a question of trust in a stranger, since whoever made the namespace chooses
// the policy in any case.
func byRoot(uid uint32) bool {
	const overflow = 65534
	return uid == 0 || uid == overflow && rootfs.InUserNamespace()
}
