package container

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns"
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

// Values of a profile's network.dialFrom: whose network the gateway uses.
const (
	dialHost      = "host"
	dialContainer = "container"
)

// holdGateway closes a namespace until openGateway opens it at start. A namespace that another container of the pod has
// opened stays open: this one's policy is added before its program runs.
func (r *Runtime) holdGateway(ns *os.File, own bool, rules *netns.Rules) error {
	if !own {
		shared, err := netns.HasGateway(ns, r.podTag())
		if errors.Is(err, netns.ErrOtherGateway) {
			return fmt.Errorf("%w, of a container below another root directory than %s", err, r.opts.Root)
		}
		if err != nil || shared {
			return err
		}
	}
	return rules.Install(ns)
}

// openGateway starts the egress process and hands the namespace's connections to it. Engines have attached their
// networks by now. Until the last step the namespace is closed, and an error leaves it so. The gateway's own start (some twenty milliseconds of a Go program) is not
// waited for: its sockets are open, so the task's first packets wait in them. If it does not come up, the supervisor finds it
// ended, starts another, waits for that, and ends the container with what it said. What it is told was judged before: the
// policy is compiled when the profile is.
func (c *Container) openGateway() error { return c.handOver(false) }

// RestartGateway starts a gateway in place of one that has ended, under the same policy. Until it serves the container
// has no network; changes that were made while it ran are gone with it.
func (c *Container) RestartGateway() error { return c.handOver(true) }

// Gateway opens the egress process that serves the container; the caller closes the pidfd. The error is ErrNoGateway if
// none was started, ErrNotRunning if it has ended.
func (c *Container) Gateway() (pidfd *os.File, pid int, err error) {
	p, err := c.gatewayRecord()
	if errors.Is(err, unix.ENOENT) {
		return nil, 0, ErrNoGateway
	}
	if err != nil {
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
	// Owner is the container that the gateway was started for, "" if it is this one: see pod.go.
	Owner string `json:"owner,omitempty"`
}

func (c *Container) handOver(again bool) error {
	d, err := c.details()
	if err != nil {
		return err
	}
	ns, err := openNamespace("/proc/"+strconv.Itoa(c.state.InitPID)+"/ns/net", unix.CLONE_NEWNET)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := lockNamespace(ns); err != nil {
		return err
	}
	// Nobody else can be in a namespace that was made for this container and whose program has not run.
	var others []podMember
	if again || !c.state.OwnNet {
		if others, err = c.podMembers(ns); err != nil {
			return err
		}
		defer closeMembers(others)
	}
	for _, o := range others {
		if o.gateway {
			return c.joinPod(o, d.Policy)
		}
	}
	return c.startGateway(ns, d.Policy, others, again)
}

// startGateway makes this container the owner of a gateway, which serves the others as well. With wait it returns once the
// gateway serves, and says why it does not.
func (c *Container) startGateway(ns *os.File, policy *Policy, others []podMember, wait bool) error {
	network := &policy.Profile.Network
	if !c.state.OwnNet { // asked again: at create the network was not locked
		if _, err := netns.HasGateway(ns, c.rt.podTag()); err != nil {
			return err
		}
	}
	own, linked, err := netns.Addresses(ns)
	if err != nil {
		return err
	}
	if !linked && network.DialFrom != dialHost {
		return c.refuseHostNetwork(policy.Profile)
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
	config, err := c.gatewayConfig(policy, linked)
	if err != nil {
		return err
	}
	for _, o := range others {
		config.Members = append(config.Members, o.asMember(o.detail.Policy, policy.Profile))
	}
	g := gatewayProcess{c: c, sockets: sockets, config: config, inspection: policy.Inspection, wait: wait}
	rules := netns.GatewayRules{
		Tag: c.rt.podTag(), TCPPort: sockets.TCPPort, DNSPort: sockets.DNSPort, Own: append(own, lo...),
	}
	// What is refused is refused also where nobody can be told of it.
	if g.refused, err = netns.OpenRefusedLog(ns); err == nil {
		defer g.refused.Close()
		rules.TellRefused = true
	}
	if g.diag, err = c.noteInit(ns); err != nil {
		return err
	}
	defer closeFiles(g.diag)
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

// checkCounted refuses limits of the network's bytes and connections where no gateway is there to count them.
func checkCounted(p *profiles.Profile) error {
	l, mode := &p.Limits, p.Network.Mode
	if p.Unrestricted || mode == profiles.NetworkGateway || mode == profiles.NetworkNone {
		return nil
	}
	for _, n := range [...]struct {
		field string
		limit int64
	}{{"egressBytes", l.EgressBytes}, {"ingressBytes", l.IngressBytes}, {"egressConnections", l.EgressConnections}, {"egressRequests", l.EgressRequests}} {
		if n.limit > 0 {
			return &profiles.RefusedError{
				What: "limits." + n.field, Allow: "the network mode gateway or none (agentsafe.dev/network, or network: {mode: ...} in the profile), or leaving the limit out",
				Rule: fmt.Sprintf("the profile %q has the network mode %s, and nothing counts them there", p.Name, mode),
			}
		}
	}
	return nil
}

// refuseHostNetwork says what would let a container without a network of its own go out.
func (c *Container) refuseHostNetwork(p *profiles.Profile) error {
	allow := fmt.Sprintf("`dialFrom = %q` below `[network]` in %s, then `agentsafectl config apply`; or `network: {dialFrom: %[1]s}` in a profile of your own",
		dialHost, filepath.Join(c.rt.opts.ConfigDir, ConfigSource))
	if p.Network.DialFrom == dialContainer {
		allow = fmt.Sprintf("`network: {dialFrom: %s}` in the profile in place of %s", dialHost, dialContainer)
	}
	return &profiles.RefusedError{
		What: "a gateway for a container that has no network of its own", Allow: allow,
		Rule: fmt.Sprintf("the profile %q has the network mode %s, whose connections would leave through the host's network", p.Name, p.Network.Mode),
	}
}

// gatewayConfig is what the gateway is told. linked says that it dials through the container's network.
func (c *Container) gatewayConfig(policy *Policy, linked bool) (*wire.Config, error) {
	network := &policy.Profile.Network
	v4, v6 := netns.NameRanges()
	config := &wire.Config{
		Container: c.id, IPv4: v4, IPv6: v6, Policy: egressConfig(network), Ceiling: policy.Ceiling,
		Limits: gatewayLimits(&policy.Profile.Limits),
	}
	var servers []netip.Addr
	var err error
	if linked {
		servers, err = nameServers(c.state.ResolvConf)
		// Docker's own resolver is behind our redirection, and answers from the host's servers anyway.
		servers = slices.DeleteFunc(servers, netip.Addr.IsLoopback)
	}
	if err == nil && len(servers) == 0 { // no network of its own, or an engine that says nothing of names (CNI, ctr)
		var text string
		text, err = readResolvConf(hostResolvConf)
		if servers = netns.Nameservers(text); linked {
			servers = slices.DeleteFunc(servers, netip.Addr.IsLoopback)
		}
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
	if config.Proxy, err = policy.Proxy.forGateway(linked); err != nil {
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
		env = setEnv(env, cred.BaseURLEnv, "http://"+cred.Name+"."+wire.Zone+cred.BasePath)
		env = setEnv(env, cred.PlaceholderEnv, placeholderOf(id, created, cred.Name))
		env = clientEnv(env, cred)
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
