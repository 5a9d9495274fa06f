package profilefile

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

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
			"packs":      list(&p.Syscalls.Packs, func(s string) (profiles.Pack, error) { return profiles.Pack(s), nil }),
			"allow":      list(&p.Syscalls.Allow, same),
			"deny":       list(&p.Syscalls.Deny, same),
			"compatABIs": later,
		}.read,
		"filesystem": section{
			"read":    list(&p.Filesystem.Read, same),
			"execute": list(&p.Filesystem.Execute, same),
			"write":   list(&p.Filesystem.Write, same),
			"hide":    later, "workspace": later,
		}.read,
		"network": section{
			"mode":         func(n *yaml.Node, field string) error { return text((*string)(&p.Network.Mode))(n, field) },
			"allowPrivate": list(&p.Network.AllowPrivate, netip.ParsePrefix),
			"allow":        later,
		}.read,
		"host": section{
			"namespaces": list(&p.Host.Namespaces, func(s string) (specs.LinuxNamespaceType, error) {
				return specs.LinuxNamespaceType(s), nil
			}),
			"mounts":  list(&p.Host.Mounts, same),
			"devices": list(&p.Host.Devices, profiles.ParseDevice),
			"sysctls": list(&p.Host.Sysctls, same),
		}.read,
		"limits": section{
			"memory":    scalar(&p.Limits.MemoryBytes, parseBytes),
			"pids":      scalar(&p.Limits.PIDs, positive),
			"cpus":      scalar(&p.Limits.CPUs, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }),
			"wallClock": later, "outputBytes": later,
		}.read,
		"enforcement": section{
			"landlock": func(n *yaml.Node, field string) error { return text((*string)(&p.Landlock))(n, field) },
		}.read,
		"environment": later, "exec": later, "trust": later,
	}
}

// later is for keys that this version does not enforce.
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
			return &lineError{key.Line, fmt.Errorf("%s: is not a key of a profile", full)}
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

func same(s string) (string, error) { return s, nil }

func scalar[T any](into *T, convert func(string) (T, error)) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return &lineError{n.Line, fmt.Errorf("%s: want one value", field)}
		}
		v, err := convert(n.Value)
		if err != nil {
			return &lineError{n.Line, fmt.Errorf("%s: %w", field, err)}
		}
		*into = v
		return nil
	}
}

func list[T any](into *[]T, convert func(string) (T, error)) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if n.Kind != yaml.SequenceNode {
			return &lineError{n.Line, fmt.Errorf("%s: want a list", field)}
		}
		out := make([]T, 0, len(n.Content))
		for i, item := range n.Content {
			var v T
			if err := scalar(&v, convert)(item, fmt.Sprintf("%s[%d]", field, i)); err != nil {
				return err
			}
			out = append(out, v)
		}
		*into = out
		return nil
	}
}

func text(into *string) func(*yaml.Node, string) error { return scalar(into, same) }

const maxNameBytes = 63

func name(into *string) func(*yaml.Node, string) error {
	return scalar(into, func(s string) (string, error) {
		if s == "" || len(s) > maxNameBytes || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || s[0] == '-' {
			return "", fmt.Errorf("%q: want lower-case letters, digits and '-', at most %d", s, maxNameBytes)
		}
		if _, err := profiles.Builtin(s); err == nil {
			return "", fmt.Errorf("%q is the name of a built-in profile", s)
		}
		return s, nil
	})
}

// capability accepts CHOWN as well as CAP_CHOWN.
func capability(s string) (string, error) {
	s = strings.ToUpper(s)
	if !strings.HasPrefix(s, "CAP_") {
		s = "CAP_" + s
	}
	return s, nil
}

func positive(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("%q is not a positive number", s)
	}
	return v, nil
}

// parseBytes reads a number of bytes with an optional binary unit.
func parseBytes(s string) (int64, error) {
	shift := 0
	number := s
	for _, u := range []struct {
		suffix string
		shift  int
	}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}} {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			number, shift = n, u.shift
			break
		}
	}
	v, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || v <= 0 || v > (1<<62)>>shift {
		return 0, fmt.Errorf("%q is not a size: want bytes, or a number with KiB, MiB, GiB or TiB", s)
	}
	return v << shift, nil
}
