package container

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/fs/replace"
	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/initproc"
	"github.com/agentsafe/agentsafe/runtime/rdt"
)

// stateVersion changes when an older runtime could not manage a container any more. A newer one manages those of all
// versions before it (integration/upgrade).
const stateVersion = 1

const (
	stateFile   = "state.json"
	detailFile  = "detail.json"
	startSocket = "start.sock"
)

// Status is the runtime-spec's status of a container. Source: runtime-spec 1.3.0, runtime.md "State".
type Status string

// The statuses; paused is runc's addition, which engines rely on.
const (
	StatusCreating Status = "creating"
	StatusCreated  Status = "created"
	StatusRunning  Status = "running"
	StatusPaused   Status = "paused"
	StatusStopped  Status = "stopped"
)

// State is what state.json keeps of a container: enough to find, signal and remove it. It is read for every operation,
// so its types stay flat: encoding/json builds an encoder for every type that is reachable, used or not.
type State struct {
	Version     int               `json:"version"`
	OCIVersion  string            `json:"ociVersion"`
	ID          string            `json:"id"`
	Bundle      string            `json:"bundle"`
	Rootfs      string            `json:"rootfs"`
	Created     time.Time         `json:"created"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// InitPID is 0 until there is an init; InitStart is its start time in clock ticks, so that a pid that was given to
	// another process is not mistaken for it.
	InitPID   int    `json:"initPid"`
	InitStart uint64 `json:"initStart"`
	// OwnPID, OwnNet say that the namespace was made for this container; UserNS and TimeNS that it is not the host's.
	OwnPID bool `json:"ownPid"`
	OwnNet bool `json:"ownNet"`
	UserNS bool `json:"userns"`
	TimeNS bool `json:"timens"`
	// HostMounts says that the container's mounts are the host's, below Rootfs; HostRoot is the id of the mount that
	// Rootfs was on before.
	HostMounts bool   `json:"hostMounts,omitempty"`
	HostRoot   uint64 `json:"hostRoot,omitempty"`
	// Cgroup is where the container's cgroups are.
	Cgroup CgroupPaths `json:"cgroup"`
	// RDT is the class of service of linux.intelRdt, nil if the spec asks for none.
	RDT *rdt.Group `json:"rdt,omitempty"`
	// Network is the mode of the network policy; ResolvConf the host's file that the engine mounts on
	// /etc/resolv.conf.
	Network    netns.Mode `json:"network"`
	ResolvConf string     `json:"resolvConf,omitempty"`
	// HasHooks says that Detail lists hooks that run after create.
	HasHooks bool `json:"hasHooks,omitempty"`
	// Layers is the directory of layers that holds this container's; "" if it has none.
	Layers string `json:"layers,omitempty"`
	// Profile is the one that was chosen. Enforcement is "warn" if it is not in force but warned of. PolicyHash names the
	// policy in force.
	Profile     string      `json:"profile"`
	Enforcement Enforcement `json:"enforcement,omitempty"`
	PolicyHash  string      `json:"policyHash"`
	// SupervisorPID and SupervisorStart are the process that enforces what the kernel does not, 0 if there is nothing of
	// that kind; Monitored says that it is a monitor program, and not whoever has created the container.
	SupervisorPID   int    `json:"supervisorPid,omitempty"`
	SupervisorStart uint64 `json:"supervisorStart,omitempty"`
	Monitored       bool   `json:"monitored,omitempty"`
}

// CgroupPaths is cgroup.State without the resources in force.
type CgroupPaths struct {
	Driver  string            `json:"driver"`
	Unified bool              `json:"unified"`
	Paths   map[string]string `json:"paths"`
	Late    map[string]string `json:"late,omitempty"`
}

// Detail is what detail.json keeps: what exec, update and the later hooks need.
type Detail struct {
	// Process is what an exec inherits from: the first process after hardening.
	Process *specs.Process `json:"process"`
	Hooks   *specs.Hooks   `json:"hooks,omitempty"`
	Policy  *Policy        `json:"policy"`
	Domain  *Domain        `json:"domain,omitempty"`
	Cgroup  *cgroup.State  `json:"cgroup"`
	// HealthCheck is the command of the engine's health checks, which works on the base where execs are transactions.
	HealthCheck []string `json:"healthCheck,omitempty"`
	// StartTable names init's operations behind the start point.
	StartTable *initproc.Table `json:"startTable,omitempty"`
}

// Policy is the compiled policy of a container, as exec and start need it.
type Policy struct {
	Profile  *profiles.Profile  `json:"profile"`
	Hash     string             `json:"hash"`
	Seccomp  [][]byte           `json:"seccomp,omitempty"` // arrays of struct sock_filter, in order of installation
	Flags    uint64             `json:"seccompFlags,omitempty"`
	Landlock *initproc.Landlock `json:"landlock,omitempty"`
	Listener *Listener          `json:"listener,omitempty"`
	Network  netns.Policy       `json:"network"`
	// Ceiling bounds what `agentsafectl network allow` may add, with the mode gateway; nil is no bound.
	Ceiling *egress.Config `json:"ceiling,omitempty"`
	// Proxy is what the gateway goes out by, nil for none.
	Proxy *HostProxy `json:"proxy,omitempty"`
	// Inspection is the authority by which the gateway looks into TLS; nil if the profile does not ask for that.
	Inspection *Inspection     `json:"inspection,omitempty"`
	Notes      []profiles.Note `json:"notes,omitempty"`
	// Warn is the profile that is not enforced, but warned of; nil if Profile is what was chosen.
	Warn *profiles.Profile `json:"warn,omitempty"`
	// Recording is where it is written down what the processes do; nil if nobody watches.
	Recording *Recording `json:"recording,omitempty"`
	// PIDs is the limit of processes where it is RLIMIT_NPROC that enforces it, 0 otherwise: see limitByRlimit.
	PIDs uint64 `json:"pids,omitempty"`
}

// chosen returns the profile that somebody chose for the container, enforced or not.
func (p *Policy) chosen() (*profiles.Profile, Enforcement) {
	if p.Warn != nil {
		return p.Warn, EnforceWarn
	}
	return p.Profile, EnforceAll
}

// writeState replaces state.json in the directory, atomically.
func writeState(dir *os.File, s *State) error { return replaceJSON(dir, stateFile, s) }

func writeDetail(dir *os.File, d *Detail) error { return replaceJSON(dir, detailFile, d) }

func replaceJSON(dir *os.File, name string, v any) error {
	data, err := encodeJSON(name, v)
	if err != nil {
		return err
	}
	return replace.File(dir, name, data, 0o600)
}

func encodeJSON(name string, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return data, nil
}

func readState(dir *os.File) (*State, error) {
	var s State
	if err := loadJSON(dir, stateFile, &s); err != nil {
		return nil, err
	}
	switch {
	case s.Version > stateVersion:
		return nil, fmt.Errorf("its state has version %d, of a newer agentsafe, and this one knows up to %d: use the newer one", s.Version, stateVersion)
	case s.Version < 1:
		return nil, fmt.Errorf("%s has no version", stateFile)
	}
	return &s, nil
}
