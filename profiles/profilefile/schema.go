package profilefile

import (
	"fmt"
	"net/netip"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.yaml.in/yaml/v3"

	"github.com/agentsafe/agentsafe/profiles"
)

// section reads the keys of a mapping; a key's reader puts the value where it belongs.
type section map[string]func(n *yaml.Node, field string) error

// document is the schema, bound to the profile that is filled.
func document(p *profiles.Profile) section {
	return section{
		"apiVersion": anyValue, "kind": anyValue, "extends": anyValue, // read by parent
		"metadata": section{
			"name":        name(&p.Name),
			"description": text(&p.Description),
		}.read,
		"capabilities": list(&p.Capabilities, capability),
		"syscalls": section{
			"packs":      list(&p.Syscalls.Packs, word[profiles.Pack]),
			"allow":      list(&p.Syscalls.Allow, same),
			"deny":       list(&p.Syscalls.Deny, same),
			"compatABIs": later,
		}.read,
		"filesystem": section{
			"read":    list(&p.Filesystem.Read, same),
			"execute": list(&p.Filesystem.Execute, same),
			"write":   list(&p.Filesystem.Write, same),
			"hide":    list(&p.Filesystem.Hide, same),
			"workspace": section{
				"mode":       scalar(&p.Filesystem.Workspace.Mode, word[profiles.WorkspaceMode]),
				"promote":    text(&p.Filesystem.Workspace.Promote),
				"quota":      scalar(&p.Filesystem.Workspace.QuotaBytes, profiles.ParseBytes),
				"paths":      list(&p.Filesystem.Workspace.Paths, same),
				"background": text(&p.Filesystem.Workspace.Background),
			}.read,
		}.read,
		"network": network(&p.Network).read,
		"host": section{
			"namespaces": list(&p.Host.Namespaces, word[specs.LinuxNamespaceType]),
			"mounts":     list(&p.Host.Mounts, same),
			"devices":    list(&p.Host.Devices, profiles.ParseDevice),
			"sysctls":    list(&p.Host.Sysctls, same),
		}.read,
		"environment": section{
			"allow": list(&p.Environment.Allow, same),
			"deny":  list(&p.Environment.Deny, same),
			"set":   variables(&p.Environment.Set),
		}.read,
		"limits": limits(&p.Limits).read,
		"exec": section{
			"transaction": text(&p.Exec.Transaction),
			"commit":      text(&p.Exec.Commit),
			"wallClock":   scalar(&p.Exec.WallClock, profiles.ParseDuration),
		}.read,
		"trust": section{
			"untrustedInput": scalar(&p.Trust.UntrustedInput, parseBool),
			"secrets":        scalar(&p.Trust.Secrets, parseBool),
			"externalWrite":  scalar(&p.Trust.ExternalWrite, parseBool),
			"waive":          list(&p.Trust.Waive, same),
		}.read,
		"evidence": section{
			"mode":   scalar(&p.Evidence.Mode, parseSwitch),
			"onFull": text(&p.Evidence.OnFull),
		}.read,
		"enforcement": section{
			"landlock": scalar(&p.Landlock, word[profiles.LandlockMode]),
		}.read,
	}
}

func network(n *profiles.Network) section {
	return section{
		"mode":         scalar(&n.Mode, word[profiles.NetworkMode]),
		"allowPrivate": list(&n.AllowPrivate, netip.ParsePrefix),
		"allow":        list(&n.Allow, same),
		"deny":         list(&n.Deny, same),
		"ruleSets":     list(&n.RuleSets, same),
		"addresses":    list(&n.Addresses, netip.ParsePrefix),
		"dialFrom":     text(&n.DialFrom),
		"credentials": mappings(&n.Credentials, func(c *profiles.Credential) section {
			return section{
				"name":           text(&c.Name),
				"file":           text(&c.File),
				"command":        list(&c.Command, same),
				"destination":    text(&c.Destination),
				"present":        text(&c.Present),
				"baseURLEnv":     text(&c.BaseURLEnv),
				"placeholderEnv": text(&c.PlaceholderEnv),
			}
		}),
	}
}

func limits(l *profiles.Limits) section {
	return section{
		"memory":      scalar(&l.MemoryBytes, profiles.ParseBytes),
		"pids":        scalar(&l.PIDs, positive),
		"cpus":        scalar(&l.CPUs, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }),
		"wallClock":   scalar(&l.WallClock, profiles.ParseDuration),
		"cpuTime":     scalar(&l.CPUTime, profiles.ParseDuration),
		"outputBytes": scalar(&l.OutputBytes, profiles.ParseBytes),
		"openFiles":   scalar(&l.OpenFiles, positive),
		"egressBytes": scalar(&l.EgressBytes, profiles.ParseBytes),
		"layerBytes":  scalar(&l.LayerBytes, profiles.ParseBytes),
		"layerInodes": scalar(&l.LayerInodes, positive),
	}
}

// later is for keys that this version does not enforce and has no field for.
func later(n *yaml.Node, field string) error {
	return &lineError{n.Line, fmt.Errorf("%s: not enforced by this version, and a profile must not promise what nothing enforces", field)}
}

func anyValue(*yaml.Node, string) error { return nil }

// read applies the section to a mapping node; field is the section's own path.
func (s section) read(n *yaml.Node, field string) error {
	if n.Kind != yaml.MappingNode {
		return &lineError{n.Line, fmt.Errorf("%s: want a mapping", field)}
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		full := key.Value
		if field != "" {
			full = field + "." + key.Value
		}
		read, ok := s[key.Value]
		switch {
		case !ok || key.Kind != yaml.ScalarNode:
			return &lineError{key.Line, fmt.Errorf("%s: is not a key of a profile%s", full, s.nearest(key.Value))}
		case seen[key.Value]:
			return &lineError{key.Line, fmt.Errorf("%s: is there twice", full)}
		}
		seen[key.Value] = true
		if err := read(value, full); err != nil {
			return err
		}
	}
	return nil
}
