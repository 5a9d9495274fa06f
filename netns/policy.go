package netns

import (
	"fmt"
	"net/netip"
)

// Mode says whose network a container has and whether it is filtered.
type Mode string

const (
	// ModeNone filters everything but loopback. It is also what the empty
	// Mode means, so that a forgotten field is the tightest policy.
	ModeNone Mode = "none"
	// ModeEngine is the network that the engine set up, filtered inside the
	// container's own namespace: public addresses, the subnets the engine
	// attached, name servers; no metadata, no other private address.
	ModeEngine Mode = "engine"
	// ModeGateway holds everything but loopback back until InstallGateway
	// hands connections to the namespace's egress process.
	ModeGateway Mode = "gateway"
	// ModeOpen is a namespace of the container's own without any rule of ours.
	ModeOpen Mode = "open"
	// ModeHost is the host's network: there is no namespace of the
	// container's own, so there is nothing that rules could be put into.
	ModeHost Mode = "host"
)

// Policy is the network part of a container's plan: plain data, comparable by
// its fields, deterministic when encoded as JSON. The zero value is ModeNone.
//
// There is deliberately no field that allows cloud metadata addresses: in
// ModeEngine they are refused even inside AllowPrivate.
type Policy struct {
	Mode Mode `json:"mode"`
	// AllowPrivate lists ranges that ModeEngine reaches although they are
	// private (the pod and service ranges of a cluster, say). It comes from
	// the host's configuration, never from an image, a pod or an annotation.
	// Gateways inside a range stay DNS only; a single address (/32, /128)
	// opens that address even if it is a gateway.
	// Other modes refuse it when it is not empty.
	AllowPrivate []netip.Prefix `json:"allowPrivate,omitempty"`
}

// Filtered reports whether rules must be in force in the container's own
// network namespace before create returns.
func (p Policy) Filtered() bool {
	return p.Mode == "" || p.Mode == ModeNone || p.Mode == ModeEngine || p.Mode == ModeGateway
}

// Validate returns an error that names the field which is wrong.
func (p Policy) Validate() error {
	switch p.Mode {
	case "", ModeNone, ModeGateway, ModeOpen, ModeHost:
		if len(p.AllowPrivate) > 0 {
			return fmt.Errorf("network allowPrivate: only mode %q takes ranges, not %q", ModeEngine, p.Mode)
		}
	case ModeEngine:
	default:
		return fmt.Errorf("network mode %q: want %q, %q, %q, %q or %q", p.Mode, ModeNone, ModeGateway, ModeEngine, ModeOpen, ModeHost)
	}
	for _, r := range p.AllowPrivate {
		if err := checkRange(r); err != nil {
			return err
		}
	}
	return nil
}

// checkRange accepts canonical prefixes that aren't IPv4-mapped and don't
// cover everything: "0.0.0.0/0" would turn the private ranges off by the back
// door, which is what ModeOpen says openly.
func checkRange(r netip.Prefix) error {
	switch {
	case !r.IsValid():
		return fmt.Errorf("network allowPrivate: not a prefix")
	case r.Addr().Is4In6() || r.Addr().Zone() != "":
		return fmt.Errorf("network allowPrivate %q: IPv4-mapped or with a zone", r)
	case r.Masked() != r:
		return fmt.Errorf("network allowPrivate %q: host bits set, want %q", r, r.Masked())
	case r.Bits() == 0:
		return fmt.Errorf("network allowPrivate %q: covers every address, use mode %q", r, ModeOpen)
	}
	return nil
}
