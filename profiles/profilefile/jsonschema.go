package profilefile

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentsafe/agentsafe/profiles"
)

// parents are the profiles that a file can extend.
func parents() []string {
	return slices.DeleteFunc(profiles.BuiltinNames(), func(n string) bool { return n == profiles.NameNone })
}

// JSONSchema returns the schema of profile files as JSON Schema (draft 2020-12), for editors. [Parse] is stricter: it
// knows values that a schema can't describe.
func JSONSchema() ([]byte, error) {
	s := document(&profiles.Profile{}).schema()
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "agentsafe profile, " + APIVersion
	s["required"] = []string{"apiVersion", "kind", "metadata", "extends"}
	describe(s, "")
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode schema of profiles: %w", err)
	}
	return append(data, '\n'), nil
}

// schema describes a section.
func (s section) schema() schema {
	properties := schema{}
	for name, k := range s {
		properties[name] = k.schema
	}
	return schema{"type": "object", "additionalProperties": false, "properties": properties}
}

// describe adds the descriptions to a schema and what is below it.
func describe(s schema, field string) {
	if text, ok := descriptions()[field]; ok {
		s["description"] = text
	}
	properties, _ := s["properties"].(schema)
	if items, ok := s["items"].(schema); ok && properties == nil {
		properties, _ = items["properties"].(schema)
	}
	for name, child := range properties {
		if c, ok := child.(schema); ok {
			describe(c, strings.TrimPrefix(field+"."+name, "."))
		}
	}
}

// Fields lists all keys of a file that hold a value, by their paths, sorted.
func Fields() []string {
	var out []string
	var walk func(at string, node schema)
	walk = func(at string, node schema) {
		properties, _ := node["properties"].(schema)
		if properties == nil {
			out = append(out, at)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			if c, ok := properties[name].(schema); ok && c["not"] == nil {
				walk(strings.TrimPrefix(at+"."+name, "."), c)
			}
		}
	}
	walk("", document(&profiles.Profile{}).schema())
	return out
}

// Describe returns what a field is for, "" for what is no field.
func Describe(field string) string { return descriptions()[field] }
