package wire

import (
	"net/netip"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// Config is what a gateway is told once, when it starts. It is JSON on a descriptor; secrets are in it, so it is never
// a file that anybody can open.
type Config struct {
	// Container is the container's id, for the log.
	Container string        `json:"container"`
	Policy    egress.Config `json:"policy"`
	// Ceiling bounds what may be allowed while the container runs; nil is no bound but the classes of addresses.
	Ceiling *egress.Config `json:"ceiling,omitempty"`
	// Members are the other containers of the pod. What one of them must not reach none of them does.
	Members []Member `json:"members,omitempty"`
	// Nameservers are asked for the names that are allowed, in this order.
	Nameservers []netip.AddrPort `json:"nameservers,omitempty"`
	// IPv4 and IPv6 are the ranges of the addresses that stand for names inside the container.
	IPv4 netip.Prefix `json:"ipv4"`
	IPv6 netip.Prefix `json:"ipv6"`
	// Refused are addresses that no name may resolve to, beside the classes: those of the host itself.
	Refused     []netip.Addr `json:"refused,omitempty"`
	Credentials []Credential `json:"credentials,omitempty"`
	// Proxy is what connections go out by; nil for none.
	Proxy    *Proxy   `json:"proxy,omitempty"`
	Limits   Limits   `json:"limits,omitzero"`
	Timeouts Timeouts `json:"timeouts,omitzero"`
}

// Limits bound what one container can take of the gateway. Zero is the default, which is in the comment.
type Limits struct {
	Connections int `json:"connections,omitempty"` // open at once, 16384
	// ConnectionsPerName is how many of them one name may have, 4096.
	ConnectionsPerName int `json:"connectionsPerName,omitempty"`
	// EgressBytes is what the task may send in all, IngressBytes what it may get; 0 is no limit.
	EgressBytes  int64 `json:"egressBytes,omitempty"`
	IngressBytes int64 `json:"ingressBytes,omitempty"`
	// RequestsPerName is how many connections and plain HTTP requests one name gets in all; 0 is no limit.
	RequestsPerName int64 `json:"requestsPerName,omitempty"`
	// NamesPerMinute is how many new names below one wildcard are looked up, 120.
	NamesPerMinute int `json:"namesPerMinute,omitempty"`
}

// Timeouts bound what waits. Zero is the default, which is in the comment.
type Timeouts struct {
	Connect time.Duration `json:"connect,omitempty"` // to an address, 10 s
	Head    time.Duration `json:"head,omitempty"`    // for the first message of a client, 10 s
	Idle    time.Duration `json:"idle,omitempty"`    // without a byte in either direction, 2 h
}

// Proxy is an HTTP proxy of the host's network, without which nothing gets out there.
type Proxy struct {
	// Host is a name or an address, which the administrator chose: no class of addresses is refused.
	Host string `json:"host"`
	Port uint16 `json:"port"`
	// TLS says that the proxy is spoken to by TLS; its certificate has to be that of Host by the host's authorities.
	TLS bool `json:"tls,omitempty"`
	// Authorization is USER:PASSWORD, "" for none.
	Authorization string `json:"authorization,omitempty"`
	// Except are names, *.suffixes and ranges of addresses that are reached without it.
	Except []string `json:"except,omitempty"`
	// Loopback says that Host may be on loopback: it is where the gateway dials through the host's network, while in the
	// container's the task could listen there.
	Loopback bool `json:"loopback,omitempty"`
}

// ExceptRule is the rule of package egress that matches an entry of [Proxy].Except.
func ExceptRule(entry string) string {
	if strings.Contains(entry, ":") && !strings.HasPrefix(entry, "[") {
		entry = "[" + entry + "]"
	}
	return "tcp://" + entry + ":1-65535"
}

// Zone is the gateway's own zone: no name below it is ever asked for outside. A credential's base URL is http://NAME.Zone.
const Zone = "agentsafe.internal"

// Credential is a secret of the host that the gateway puts into requests to one destination.
type Credential struct {
	Name string `json:"name"`
	// Host and Port are the destination; it is spoken to over TLS.
	Host string `json:"host"`
	Port uint16 `json:"port"`
	// Present is how: header:NAME, bearer, basic or query:NAME.
	Present     string `json:"present"`
	Secret      string `json:"secret"`
	Placeholder string `json:"placeholder"`
	// Inspect puts the secret in place of the placeholder in requests of TLS to the destination.
	Inspect bool `json:"inspect,omitempty"`
}

// ApplyDefaults fills in what is zero.
func (c *Config) ApplyDefaults() {
	setDefault(&c.Limits.Connections, 16384)
	setDefault(&c.Limits.ConnectionsPerName, 4096)
	setDefault(&c.Limits.NamesPerMinute, 120)
	setDefault(&c.Timeouts.Connect, 10*time.Second)
	setDefault(&c.Timeouts.Head, 10*time.Second)
	setDefault(&c.Timeouts.Idle, 2*time.Hour)
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Origin says whose the processes of a control group are. It is a line of the file "execs" that the gateway is given.
type Origin struct {
	// Cgroup is the id of a cgroup of the cgroup2 hierarchy.
	Cgroup    uint64 `json:"cgroup"`
	Container string `json:"container"`
	// Exec is the engine's name for a command, "" if it has none, and FirstProcess for what the container was started with.
	Exec string `json:"exec,omitempty"`
	// Branch is the name of the command's cgroup below the container's, as the evidence has it; "" for the first process.
	Branch string `json:"branch,omitempty"`
}

// FirstProcess is [Origin].Exec of the program that a container was started with.
const FirstProcess = "init"

// Member is a further container of the pod, which shares the network namespace and so its gateway.
type Member struct {
	Container string        `json:"container"`
	Policy    egress.Config `json:"policy"`
	// Ceiling is as in [Config].
	Ceiling *egress.Config `json:"ceiling,omitempty"`
	Limits  Limits         `json:"limits,omitzero"`
	// Placeholders are what it holds in place of the secrets of these credentials, by name.
	Placeholders map[string]string `json:"placeholders,omitempty"`
}

// Request is what the host's side asks of a running gateway, one JSON value a connection.
type Request struct {
	Op   string `json:"op"` // show, allow, deny, join or leave
	Rule string `json:"rule,omitempty"`
	// Member is who joins; of who leaves only the name counts.
	Member *Member `json:"member,omitempty"`
}
