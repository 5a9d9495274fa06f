package profilefile

import (
	"fmt"
	"net/netip"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.yaml.in/yaml/v3"

	"github.com/agentsafe/agentsafe/profiles"
)

// section is the keys of a mapping.
type section map[string]key

// key is one key of a file: its reader puts the value where it belongs, its schema says what the value looks like.
type key struct {
	read   func(n *yaml.Node, field string) error
	schema schema
}

// schema is a JSON Schema, without descriptions: those are in descriptions.go.
type schema map[string]any

// oneOf narrows a key of words for people's editors; what is accepted is for Validate to say.
func (k key) oneOf(words ...string) key {
	k.schema = schema{"enum": words}
	return k
}

func (k key) is(jsonType string) key {
	k.schema = schema{"type": jsonType}
	return k
}

// key makes a section the value of a key.
func (s section) key() key { return key{s.read, s.schema()} }

// document is the schema, bound to the profile that is filled.
func document(p *profiles.Profile) section {
	return section{
		// These three are read by parent.
		"apiVersion": {anyValue, schema{"const": APIVersion}}, "kind": {anyValue, schema{"const": "Profile"}},
		"extends": {anyValue, schema{"type": "string", "examples": parents()}},
		"metadata": section{
			"name":        name(&p.Name),
			"description": text(&p.Description),
		}.key(),
		"capabilities": list(&p.Capabilities, capability),
		"syscalls": section{
			"packs":      list(&p.Syscalls.Packs, word[profiles.Pack]).items("debug", "sudo", "browser", "containers"),
			"allow":      list(&p.Syscalls.Allow, same),
			"deny":       list(&p.Syscalls.Deny, same),
			"compatABIs": {later, schema{"not": schema{}}},
		}.key(),
		"filesystem": section{
			"read":    list(&p.Filesystem.Read, same),
			"execute": list(&p.Filesystem.Execute, same),
			"write":   list(&p.Filesystem.Write, same),
			"hide":    list(&p.Filesystem.Hide, same),
			"workspace": section{
				"mode":       scalar(&p.Filesystem.Workspace.Mode, word[profiles.WorkspaceMode]).oneOf("direct", "overlay", "readonly"),
				"promote":    text(&p.Filesystem.Workspace.Promote).oneOf("manual"),
				"quota":      scalar(&p.Filesystem.Workspace.QuotaBytes, profiles.ParseBytes),
				"memory":     scalar(&p.Filesystem.Workspace.MemoryBytes, profiles.ParseBytes),
				"copy":       scalar(&p.Filesystem.Workspace.CopyBytes, profiles.ParseBytes),
				"paths":      list(&p.Filesystem.Workspace.Paths, same),
				"background": text(&p.Filesystem.Workspace.Background).oneOf("kill", "keep"),
			}.key(),
		}.key(),
		"network": network(&p.Network).key(),
		"host": section{
			"namespaces": list(&p.Host.Namespaces, word[specs.LinuxNamespaceType]).items("pid", "network", "ipc", "uts"),
			"mounts":     list(&p.Host.Mounts, same),
			"devices":    list(&p.Host.Devices, profiles.ParseDevice),
			"sysctls":    list(&p.Host.Sysctls, same),
		}.key(),
		"environment": section{
			"allow": list(&p.Environment.Allow, same),
			"deny":  list(&p.Environment.Deny, same),
			"set":   variables(&p.Environment.Set),
		}.key(),
		"limits": limits(&p.Limits).key(),
		"exec": section{
			"transaction": text(&p.Exec.Transaction).oneOf("auto"),
			"commit":      text(&p.Exec.Commit).oneOf("always", "success", "never"),
			"wallClock":   scalar(&p.Exec.WallClock, profiles.ParseDuration),
			"base":        list(&p.Exec.Base, same),
		}.key(),
		"trust": section{
			"untrustedInput": scalar(&p.Trust.UntrustedInput, parseBool).is("boolean"),
			"secrets":        scalar(&p.Trust.Secrets, parseBool).is("boolean"),
			"externalWrite":  scalar(&p.Trust.ExternalWrite, parseBool).is("boolean"),
			"waive":          list(&p.Trust.Waive, same),
		}.key(),
		"evidence": section{
			"mode":    scalar(&p.Evidence.Mode, parseSwitch).oneOf("on", "off"),
			"onFull":  text(&p.Evidence.OnFull).oneOf("stop", "gap"),
			"denials": text(&p.Evidence.Denials).oneOf("kernel"),
		}.key(),
		"enforcement": section{
			"landlock": scalar(&p.Landlock, word[profiles.LandlockMode]).oneOf("required", "best-effort", "off"),
		}.key(),
	}
}

func network(n *profiles.Network) section {
	return section{
		"mode":         scalar(&n.Mode, word[profiles.NetworkMode]).oneOf("none", "gateway", "engine", "host"),
		"allowPrivate": list(&n.AllowPrivate, netip.ParsePrefix),
		"allow":        list(&n.Allow, same),
		"deny":         list(&n.Deny, same),
		"ruleSets":     list(&n.RuleSets, same),
		"addresses":    list(&n.Addresses, netip.ParsePrefix),
		"connectPorts": list(&n.ConnectPorts, profiles.ParsePorts).ports(),
		"listenPorts":  list(&n.ListenPorts, profiles.ParsePorts).ports(),
		"dialFrom":     text(&n.DialFrom).oneOf("container", "host"),
		"credentials": mappings(&n.Credentials, func(c *profiles.Credential) section {
			return section{
				"name":           text(&c.Name),
				"file":           text(&c.File),
				"command":        list(&c.Command, same),
				"destination":    text(&c.Destination),
				"present":        text(&c.Present),
				"baseURLEnv":     text(&c.BaseURLEnv),
				"placeholderEnv": text(&c.PlaceholderEnv),
				"basePath":       text(&c.BasePath),
				"client":         text(&c.Client).oneOf("git", "npm", "pip"),
				"inspect":        scalar(&c.Inspect, strconv.ParseBool),
			}
		}),
	}
}

func limits(l *profiles.Limits) section {
	return section{
		"memory":            scalar(&l.MemoryBytes, profiles.ParseBytes),
		"pids":              scalar(&l.PIDs, positive).is("integer"),
		"cpus":              scalar(&l.CPUs, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }).is("number"),
		"wallClock":         scalar(&l.WallClock, profiles.ParseDuration),
		"cpuTime":           scalar(&l.CPUTime, profiles.ParseDuration),
		"outputBytes":       scalar(&l.OutputBytes, profiles.ParseBytes),
		"onOutput":          text(&l.OnOutput).oneOf(profiles.OutputStop, profiles.OutputDiscard),
		"openFiles":         scalar(&l.OpenFiles, positive).is("integer"),
		"egressBytes":       scalar(&l.EgressBytes, profiles.ParseBytes),
		"layerBytes":        scalar(&l.LayerBytes, profiles.ParseBytes),
		"layerInodes":       scalar(&l.LayerInodes, positive).is("integer"),
		"ingressBytes":      scalar(&l.IngressBytes, profiles.ParseBytes),
		"egressConnections": scalar(&l.EgressConnections, positive).is("integer"),
		"egressRequests":    scalar(&l.EgressRequests, positive).is("integer"),
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
		k, ok := s[key.Value]
		switch {
		case !ok || key.Kind != yaml.ScalarNode:
			return &lineError{key.Line, fmt.Errorf("%s: is not a key of a profile%s", full, s.nearest(key.Value))}
		case seen[key.Value]:
			return &lineError{key.Line, fmt.Errorf("%s: is there twice", full)}
		}
		seen[key.Value] = true
		if err := k.read(value, full); err != nil {
			return err
		}
	}
	return nil
}
