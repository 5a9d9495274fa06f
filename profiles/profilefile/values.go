package profilefile

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/agentsafe/agentsafe/profiles"
)

func same(s string) (string, error) { return s, nil }

func scalar[T any](into *T, convert func(string) (T, error)) key {
	return key{schema: schema{"type": "string"}, read: func(n *yaml.Node, field string) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return &lineError{n.Line, fmt.Errorf("%s: want one value", field)}
		}
		value := n.Value
		if n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
			value = strings.TrimRight(value, "\n")
		}
		if strings.ContainsAny(value, "\n\t") {
			return &lineError{n.Line, fmt.Errorf("%s: has a line break or a tab", field)}
		}
		v, err := convert(value)
		if err != nil {
			return &lineError{n.Line, fmt.Errorf("%s: %w", field, err)}
		}
		*into = v
		return nil
	}}
}

// maxEntries bounds a list: some checks compare all of its entries with each other.
const maxEntries = 4096

func list[T any](into *[]T, convert func(string) (T, error)) key {
	return key{schema: schema{"type": "array", "items": schema{"type": "string"}}, read: func(n *yaml.Node, field string) error {
		if n.Kind != yaml.SequenceNode {
			return &lineError{n.Line, fmt.Errorf("%s: want a list", field)}
		}
		if len(n.Content) > maxEntries {
			return &lineError{n.Line, fmt.Errorf("%s: %d entries, at most %d", field, len(n.Content), maxEntries)}
		}
		out := make([]T, 0, len(n.Content))
		for i, item := range n.Content {
			var v T
			if err := scalar(&v, convert).read(item, fmt.Sprintf("%s[%d]", field, i)); err != nil {
				return err
			}
			out = append(out, v)
		}
		*into = out
		return nil
	}}
}

// items narrows a list of words for people's editors.
func (k key) items(words ...string) key {
	k.schema = schema{"type": "array", "items": schema{"enum": words}}
	return k
}

// ports are spelt as numbers, and ranges as texts.
func (k key) ports() key {
	k.schema = schema{"type": "array", "items": schema{"type": []string{"integer", "string"}, "minimum": 0, "maximum": 65535, "pattern": "^[0-9]+(-[0-9]+)?$"}}
	return k
}

func text(into *string) key { return scalar(into, same) }

const maxNameBytes = 63

// CheckName returns an error that says why a profile can't be called so.
func CheckName(s string) error {
	if s == "" || len(s) > maxNameBytes || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || s[0] == '-' {
		return fmt.Errorf("%q: want lower-case letters, digits and '-', at most %d", s, maxNameBytes)
	}
	if _, err := profiles.Builtin(s); err == nil {
		return fmt.Errorf("%q is the name of a built-in profile", s)
	}
	return nil
}

func name(into *string) key {
	return scalar(into, func(s string) (string, error) { return s, CheckName(s) })
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

// word takes any text as a value of a type of words; Validate judges it.
func word[T ~string](s string) (T, error) { return T(s), nil }

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

// parseSwitch reads on and off, which YAML 1.1 took for booleans.
func parseSwitch(s string) (string, error) {
	switch s {
	case "on", "true":
		return "on", nil
	case "off", "false":
		return "", nil
	}
	return "", fmt.Errorf("%q is neither on nor off", s)
}

// variables reads a mapping of names to texts.
func variables(into *map[string]string) key {
	return key{schema: schema{"type": "object", "additionalProperties": schema{"type": "string"}}, read: func(n *yaml.Node, field string) error {
		if n.Kind != yaml.MappingNode {
			return &lineError{n.Line, fmt.Errorf("%s: want a mapping", field)}
		}
		out := map[string]string{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if _, twice := out[key.Value]; twice || key.Kind != yaml.ScalarNode {
				return &lineError{key.Line, fmt.Errorf("%s.%s: is there twice, or is no name", field, key.Value)}
			}
			if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
				return &lineError{value.Line, fmt.Errorf("%s.%s: want one value", field, key.Value)}
			}
			out[key.Value] = value.Value // with its line breaks, which a variable may have
		}
		*into = out
		return nil
	}}
}

// mappings reads a list of mappings.
func mappings[T any](into *[]T, item func(*T) section) key {
	return key{schema: schema{"type": "array", "items": item(new(T)).schema()}, read: func(n *yaml.Node, field string) error {
		if n.Kind != yaml.SequenceNode {
			return &lineError{n.Line, fmt.Errorf("%s: want a list", field)}
		}
		out := make([]T, len(n.Content))
		for i, node := range n.Content {
			if err := item(&out[i]).read(node, fmt.Sprintf("%s[%d]", field, i)); err != nil {
				return err
			}
		}
		*into = out
		return nil
	}}
}
