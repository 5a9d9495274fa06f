package container

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// Domain is what linux.* says of each process of a container, the first one and execs alike.
type Domain struct {
	Personality  *uint64                `json:"personality,omitempty"`
	MemoryPolicy *initproc.MemoryPolicy `json:"memoryPolicy,omitempty"`
}

// apply puts the domain on a process; nil leaves it alone.
func (d *Domain) apply(p *initproc.Process) {
	if d != nil {
		p.Personality, p.MemoryPolicy = d.Personality, d.MemoryPolicy
	}
}

// planDomain translates linux.personality and linux.memoryPolicy; nil if there is neither.
func planDomain(in *specs.Linux) (*Domain, error) {
	policy, err := planMemoryPolicy(in.MemoryPolicy)
	if err != nil {
		return nil, err
	}
	if in.Personality == nil && policy == nil {
		return nil, nil //nolint:nilnil // nothing asked for
	}
	return &Domain{Personality: planPersonality(in.Personality), MemoryPolicy: policy}, nil
}

var memoryModes = map[specs.MemoryPolicyModeType]uint32{ //nolint:gochecknoglobals // a constant table
	specs.MpolDefault: 0, specs.MpolPreferred: 1, specs.MpolBind: 2, specs.MpolInterleave: 3, specs.MpolLocal: 4,
	specs.MpolPreferredMany: 5, specs.MpolWeightedInterleave: 6,
}

var memoryFlags = map[specs.MemoryPolicyFlagType]uint32{ //nolint:gochecknoglobals // a constant table
	specs.MpolFNumaBalancing: 1 << 13, specs.MpolFRelativeNodes: 1 << 14, specs.MpolFStaticNodes: 1 << 15,
}

// planMemoryPolicy translates linux.memoryPolicy for set_mempolicy(2). Source: runtime-spec 1.3.0, config-linux.md
// "Memory policy"; linux/mempolicy.h.
func planMemoryPolicy(in *specs.LinuxMemoryPolicy) (*initproc.MemoryPolicy, error) {
	if in == nil {
		return nil, nil //nolint:nilnil // no policy asked for
	}
	mode, ok := memoryModes[in.Mode]
	if !ok {
		return nil, invalid("linux.memoryPolicy.mode", fmt.Sprintf("%q is not a mode", in.Mode))
	}
	for i, f := range in.Flags {
		bit, ok := memoryFlags[f]
		if !ok {
			return nil, invalid(fmt.Sprintf("linux.memoryPolicy.flags[%d]", i), fmt.Sprintf("%q is not a flag", f))
		}
		mode |= bit
	}
	nodes, err := parseBits(in.Nodes, 1024)
	if err != nil {
		return nil, invalid("linux.memoryPolicy.nodes", err.Error())
	}
	return &initproc.MemoryPolicy{Mode: mode, Nodes: nodes}, nil
}

// planAffinity translates process.execCPUAffinity, which is for execs alone. Source: runtime-spec 1.3.0, config.md "Linux
// Process".
func planAffinity(in *specs.CPUAffinity, p *initproc.Process) error {
	if in == nil {
		return nil
	}
	for _, set := range []struct {
		name, list string
		mask       *[]byte
	}{
		{"initial", in.Initial, &p.InitialAffinity},
		{"final", in.Final, &p.Affinity},
	} {
		if set.list == "" {
			continue
		}
		const maxCPUs = 8192 // the largest NR_CPUS of any architecture
		bits, err := parseBits(set.list, maxCPUs)
		if err != nil {
			return invalid("process.execCPUAffinity."+set.name, err.Error())
		}
		*set.mask = bits
	}
	return nil
}

// parseBits parses a list of numbers and ranges such as "0-3,7", each below limit, to a bit mask in whole 64-bit words.
func parseBits(list string, limit int) ([]byte, error) {
	var out []byte
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		first, last, isRange := strings.Cut(part, "-")
		low, err := strconv.Atoi(first)
		high := low
		if err == nil && isRange {
			high, err = strconv.Atoi(last)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is not a list of numbers and ranges", list)
		case low < 0 || high < low || high >= limit:
			return nil, fmt.Errorf("%q is not a range below %d", part, limit)
		}
		for n := low; n <= high; n++ {
			for len(out) <= n/8 {
				out = append(out, 0, 0, 0, 0, 0, 0, 0, 0)
			}
			out[n/8] |= 1 << (n % 8) // little-endian words, as on every architecture that is supported
		}
	}
	return out, nil
}

// selinux reports whether the kernel's SELinux is in use; without it a mount label means nothing.
func selinux() bool {
	return !errors.Is(unix.Access("/sys/fs/selinux/enforce", unix.F_OK), unix.ENOENT)
}
