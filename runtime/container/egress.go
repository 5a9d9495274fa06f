package container

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
	"github.com/agentsafe/agentsafe/profiles"
)

// Files of a container with a gateway, in its state directory.
const (
	// NetworkLog has a JSON line for each of the gateway's decisions.
	NetworkLog = "network.jsonl"
	// NetworkControl is the socket on which a running gateway answers.
	NetworkControl = "network.sock"
	// networkProcess names the gateway's process.
	networkProcess = "network.json"
)

// dialHost is the value of a profile's network.dialFrom that lets the gateway use the host's network.
const dialHost = "host"

// gatewayTag names a policy in the rules: containers of a pod share a gateway if they have the same.
func gatewayTag(p *profiles.Profile) (string, error) {
	data, err := p.Network.MarshalJSON()
	if err != nil {
		return "", fmt.Errorf("encode network policy: %w", err)
	}
	h := fnv.New64a()
	h.Write(data)                                          //nolint:errcheck // never fails
	fmt.Fprintf(h, " %s %d", p.Name, p.Limits.EgressBytes) //nolint:errcheck // likewise
	return fmt.Sprintf("%016x", h.Sum64()), nil
}

// holdGateway closes a namespace until openGateway opens it at start. A namespace that another container of the pod has
// opened under the same policy stays open.
func holdGateway(ns *os.File, own bool, p *profiles.Profile, rules *netns.Rules) error {
	if !own {
		tag, err := gatewayTag(p)
		if err != nil {
			return err
		}
		shared, err := netns.HasGateway(ns, tag)
		if errors.Is(err, netns.ErrOtherGateway) {
			return fmt.Errorf("%w: containers that share a network need the same network policy", err)
		}
		if err != nil || shared {
			return err
		}
	}
	return rules.Install(ns)
}

// openGateway starts the egress process and hands the namespace's connections to it. Engines have attached their
// networks by now. Until the last step the namespace is closed, and an error leaves it so.
func (c *Container) openGateway() error { return c.handOver(false) }

// RestartGateway starts a gateway in place of one that has ended, under the same policy. Until it serves the container
// has no network; changes that were made while it ran are gone with it.
func (c *Container) RestartGateway() error { return c.handOver(true) }

// Gateway opens the container's egress process; the caller closes the pidfd. The error is ErrNotRunning if there is none
// of its own.
func (c *Container) Gateway() (pidfd *os.File, pid int, err error) {
	var p gatewayRecord
	if err := loadJSON(c.dir, networkProcess, &p); errors.Is(err, unix.ENOENT) {
		return nil, 0, ErrNotRunning
	} else if err != nil {
		return nil, 0, fmt.Errorf("find gateway of container %q: %w", c.id, err)
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return nil, 0, ErrNotRunning
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if start, _, err := startTime(p.PID); err != nil || start != p.Start {
		f.Close()
		return nil, 0, ErrNotRunning
	}
	return f, p.PID, nil
}

// gatewayRecord names a process for good: a pid alone is given again.
type gatewayRecord struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

func (c *Container) handOver(again bool) error {
	d, err := c.details()
	if err != nil {
		return err
	}
	network := &d.Policy.Profile.Network
	ns, err := openNamespace("/proc/"+strconv.Itoa(c.state.InitPID)+"/ns/net", unix.CLONE_NEWNET)
	if err != nil {
		return err
	}
	defer ns.Close()
	tag, err := gatewayTag(d.Policy.Profile)
	if err != nil {
		return err
	}
	if !c.state.OwnNet && !again {
		if shared, err := netns.HasGateway(ns, tag); shared || err != nil {
			return err
		}
	}
	own, linked, err := netns.Addresses(ns)
	if err != nil {
		return err
	}
	if !linked && network.DialFrom != dialHost {
		return errors.New("network.mode gateway: the container has no network, and the profile does not let the gateway use the host's (network.dialFrom: host would)")
	}
	sockets, err := netns.OpenGatewaySockets(ns)
	if err != nil {
		return err
	}
	defer sockets.Close()
	lo, err := netns.RouteNames(ns, !linked, len(sockets.TCP) > 1)
	if err != nil {
		return err
	}
	config, err := c.gatewayConfig(network, linked)
	if err != nil {
		return err
	}
	g := gatewayProcess{c: c, sockets: sockets, config: config}
	rules := netns.GatewayRules{
		Tag: tag, TCPPort: sockets.TCPPort, DNSPort: sockets.DNSPort, Own: append(own, lo...),
	}
	if linked {
		g.ns = ns
		if g.cgroup, rules.CgroupID, err = gatewayCgroup(); err != nil {
			return err
		}
		defer g.cgroup.Close()
	}
	if err := g.start(); err != nil {
		return fmt.Errorf("start gateway: %w", err)
	}
	return netns.InstallGateway(ns, rules)
}

// gatewayConfig is what the gateway is told. linked says that it dials through the container's network.
func (c *Container) gatewayConfig(network *profiles.Network, linked bool) (*wire.Config, error) {
	v4, v6 := netns.NameRanges()
	config := &wire.Config{
		Container: c.id, IPv4: v4, IPv6: v6,
		Policy: egress.Config{Allow: network.Allow, Deny: network.Deny, RuleSets: network.RuleSets, Addresses: network.Addresses},
		Limits: wire.Limits{EgressBytes: c.detail.Policy.Profile.Limits.EgressBytes},
	}
	var servers []netip.Addr
	var err error
	if linked {
		servers, err = nameServers(c.state.ResolvConf)
		// Docker's own resolver is behind our redirection, and answers from the host's servers anyway.
		servers = slices.DeleteFunc(servers, netip.Addr.IsLoopback)
	} else {
		var text string
		text, err = readResolvConf(hostResolvConf)
		servers = netns.Nameservers(text)
	}
	if err != nil {
		return nil, err
	}
	const dnsPort = 53
	for _, s := range servers {
		config.Nameservers = append(config.Nameservers, netip.AddrPortFrom(s, dnsPort))
	}
	if config.Refused, err = netns.HostAddresses(); err != nil {
		return nil, err
	}
	for i := range network.Credentials {
		cred, err := c.readCredential(&network.Credentials[i])
		if err != nil {
			return nil, fmt.Errorf("network.credentials %q: %w", network.Credentials[i].Name, err)
		}
		config.Credentials = append(config.Credentials, cred)
	}
	return config, nil
}

// gatewayEnv adds what a task needs in order to use credentials that it doesn't have: the gateway's local address, and
// placeholders. Neither is a secret.
func gatewayEnv(p *specs.Process, profile *profiles.Profile, id string, created time.Time) {
	if profile == nil || p == nil || profile.Network.Mode != profiles.NetworkGateway || len(profile.Network.Credentials) == 0 {
		return
	}
	env := slices.Clone(p.Env)
	for i := range profile.Network.Credentials {
		cred := &profile.Network.Credentials[i]
		env = setEnv(env, cred.BaseURLEnv, "http://"+cred.Name+"."+wire.Zone)
		env = setEnv(env, cred.PlaceholderEnv, placeholderOf(id, created, cred.Name))
	}
	p.Env = env
}

// setEnv replaces or adds a variable; no name, no change.
func setEnv(env []string, name, value string) []string {
	if name == "" {
		return env
	}
	env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(env, name+"="+value)
}

// placeholderOf is unique to a container, so that one which turns up elsewhere tells where it came from.
func placeholderOf(id string, created time.Time, name string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d %s", id, created.UnixNano(), name)
	return fmt.Sprintf("agentsafe-placeholder-%016x", h.Sum64())
}
