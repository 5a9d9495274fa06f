package profiles

import (
	"net/netip"
	"time"
)

// Filesystem lists paths inside the container; each covers what is below it. "$HOME", "~" and "$WORKSPACE" at the
// start of a path are expanded.
type Filesystem struct {
	Read    []string `json:"read,omitempty"`
	Execute []string `json:"execute,omitempty"`
	// Write implies Read.
	Write []string `json:"write,omitempty"`
	// Hide lists what is covered by something empty, although a path above it is granted.
	Hide      []string  `json:"hide,omitempty"`
	Workspace Workspace `json:"workspace,omitzero"`
}

// WorkspaceMode says where writes to the writable bind mounts go.
type WorkspaceMode string

// Workspace modes, loose to tight. The empty mode is WorkspaceDirect.
const (
	WorkspaceDirect   WorkspaceMode = "direct"   // to the host's folder, as the engine mounted it
	WorkspaceOverlay  WorkspaceMode = "overlay"  // to a layer that the host sees when somebody promotes it
	WorkspaceReadonly WorkspaceMode = "readonly" // nowhere
)

// Workspace is what becomes of the folders that the task works on.
type Workspace struct {
	Mode WorkspaceMode `json:"mode,omitempty"`
	// Promote says who takes a layer over to the host: "manual" or "".
	Promote string `json:"promote,omitempty"`
	// QuotaBytes bounds a layer; 0 is no bound.
	QuotaBytes int64 `json:"quotaBytes,omitempty"`
	// MemoryBytes puts the layers of each workspace into memory, at most so many bytes; 0 has them on the disk.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// CopyBytes is how large a folder may be of which the task gets a copy where overlayfs can't take it; 0 has it refused.
	CopyBytes int64 `json:"copyBytes,omitempty"`
	// Paths are the writable bind mounts that are workspaces, by their place in the container; none means all.
	Paths []string `json:"paths,omitempty"`
	// Background says what becomes of processes that outlive their exec: "kill" or "keep".
	Background string `json:"background,omitempty"`
}

// NetworkMode says whose network a container may have.
type NetworkMode string

// Network modes. The empty mode is NetworkNone.
const (
	NetworkNone    NetworkMode = "none"
	NetworkGateway NetworkMode = "gateway"
	NetworkEngine  NetworkMode = "engine"
	NetworkHost    NetworkMode = "host"
)

// Network is the network part of a profile.
type Network struct {
	Mode NetworkMode `json:"mode,omitempty"`
	// AllowPrivate lists private ranges that NetworkEngine reaches: the ranges of a cluster, say.
	AllowPrivate []netip.Prefix `json:"allowPrivate,omitempty"`
	// Allow and Deny are rules of the gateway as text: "*.pypi.org:443", "ssh://github.com", "10.0.0.0/8:443". Deny wins.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	// RuleSets are named lists of rules, see [RuleSetNames].
	RuleSets []string `json:"ruleSets,omitempty"`
	// Addresses are private ranges that names may resolve to.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// DialFrom says whose network the gateway dials through: "container" or "host"; "" is container.
	DialFrom    string       `json:"dialFrom,omitempty"`
	Credentials []Credential `json:"credentials,omitempty"`
	// ConnectPorts and ListenPorts are the TCP ports that may be connected to, as the program names them, and bound. nil
	// restricts nothing, the empty list grants nothing. They hold in every mode, beside its own rules.
	ConnectPorts []PortRange `json:"connectPorts,omitzero"`
	ListenPorts  []PortRange `json:"listenPorts,omitzero"`
}

// Credential is a secret that the gateway puts into requests to one destination, so that the task never has it.
type Credential struct {
	Name string `json:"name"`
	// File and Command are where the secret comes from, on the host; one of them.
	File    string   `json:"file,omitempty"`
	Command []string `json:"command,omitempty"`
	// Destination is the only host, with a port, that gets it.
	Destination string `json:"destination"`
	// Present is how: "bearer", "basic", "header:NAME" or "query:NAME".
	Present string `json:"present"`
	// BaseURLEnv is the variable that gets the gateway's local address; PlaceholderEnv the one that gets a value which
	// is no secret, for programs that don't start without a key.
	BaseURLEnv     string `json:"baseURLEnv,omitempty"`
	PlaceholderEnv string `json:"placeholderEnv,omitempty"`
	// BasePath is the path of the local address, as in "/v1"; the gateway does not hold requests to it.
	BasePath string `json:"basePath,omitempty"`
	// Inspect has the gateway put the secret in place of the placeholder in TLS to the destination, which it inspects for that;
	// the destination needs a rule that allows it.
	Inspect bool `json:"inspect,omitempty"`
	// Client is a program that is told of the local address in its own way: "git", "npm" or "pip"; see clientEnv in package container.
	Client string `json:"client,omitempty"`
}

// Environment filters the variables that a process starts with. Allow and Deny are patterns of path.Match on names.
type Environment struct {
	// Allow, if it is not empty, is all that is kept.
	Allow []string `json:"allow,omitempty"`
	// Deny is removed, whatever Allow says.
	Deny []string `json:"deny,omitempty"`
	// Set is added last.
	Set map[string]string `json:"set,omitempty"`
}

// Limits are upper bounds for the spec's own; 0 is no bound.
type Limits struct {
	MemoryBytes int64   `json:"memoryBytes,omitempty"`
	PIDs        int64   `json:"pids,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	// WallClock and CPUTime are of the container's whole life; nanoseconds in JSON.
	WallClock Duration `json:"wallClock,omitempty"`
	CPUTime   Duration `json:"cpuTime,omitempty"`
	// OutputBytes is what the task may write to its standard streams.
	OutputBytes int64 `json:"outputBytes,omitempty"`
	// OnOutput says what happens to a task that writes more: "stop" (also "") is EPIPE, "discard" lets it go on.
	OnOutput string `json:"onOutput,omitempty"`
	// OpenFiles is RLIMIT_NOFILE.
	OpenFiles int64 `json:"openFiles,omitempty"`
	// EgressBytes is what the gateway relays outwards.
	EgressBytes int64 `json:"egressBytes,omitempty"`
	// IngressBytes is what the gateway relays to the task, EgressConnections how many connections are open at once, and
	// EgressRequests how many connections and plain HTTP requests one name gets in all.
	IngressBytes      int64 `json:"ingressBytes,omitempty"`
	EgressConnections int64 `json:"egressConnections,omitempty"`
	EgressRequests    int64 `json:"egressRequests,omitempty"`
	LayerBytes        int64 `json:"layerBytes,omitempty"`
	LayerInodes       int64 `json:"layerInodes,omitempty"`
}

// What becomes of a task that has written more than it may.
const (
	OutputStop    = "stop"
	OutputDiscard = "discard"
)

// Duration is a time span, nanoseconds in JSON.
type Duration = time.Duration

// Exec is what holds for each process that is started in the container later.
type Exec struct {
	// Transaction is "auto" (an exec without a terminal gets a layer of its own) or "" (none).
	Transaction string `json:"transaction,omitempty"`
	// Commit says when such a layer is kept: "always" (also ""), "success" or "never".
	Commit string `json:"commit,omitempty"`
	// WallClock bounds one exec.
	WallClock Duration `json:"wallClock,omitempty"`
	// Base lists commands, their words joined by spaces, that get no such layer: probes of an engine that can't be told from
	// execs.
	Base []string `json:"base,omitempty"`
}

// empty reports whether nothing is said.
func (e *Exec) empty() bool {
	return e.Transaction == "" && e.Commit == "" && e.WallClock == 0 && len(e.Base) == 0
}

// Trust is what a profile's tasks may hold, for the Rule of Two.
type Trust struct {
	UntrustedInput bool `json:"untrustedInput,omitempty"`
	Secrets        bool `json:"secrets,omitempty"`
	ExternalWrite  bool `json:"externalWrite,omitempty"`
	// Waive names sources (a variable, a mount, a rule) that the administrator does not count.
	Waive []string `json:"waive,omitempty"`
}

// Evidence is what is recorded.
type Evidence struct {
	// Mode is "on" or "" (off).
	Mode string `json:"mode,omitempty"`
	// OnFull says what happens when nothing can be written any more: "stop" the task, or leave a "gap".
	OnFull string `json:"onFull,omitempty"`
	// Denials is "kernel" to have refused system calls and files listed, or "".
	Denials string `json:"denials,omitempty"`
}

// DenialsKernel is the value of Evidence.Denials that has the kernel report what it refuses.
const DenialsKernel = "kernel"
