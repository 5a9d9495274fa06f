package profileview

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/agentsafe/agentsafe/profiles"
)

// Diff lists the dimensions in which one of two profiles grants more, with the values of both.
func Diff(a, b *profiles.Profile) (*Table, error) {
	t := &Table{Heading: []string{"field", "grants more", a.Name, b.Name}}
	left, right := profiles.Excess(a, b), profiles.Excess(b, a)
	valuesA, err := values(a)
	if err != nil {
		return nil, err
	}
	valuesB, err := values(b)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, field := range append(left, right...) {
		if seen[field] {
			continue
		}
		seen[field] = true
		more := a.Name
		switch {
		case contains(left, field) && contains(right, field):
			more = "each something"
		case contains(right, field):
			more = b.Name
		}
		t.Rows = append(t.Rows, []string{field, more, value(valuesA, field), value(valuesB, field)})
	}
	return t, nil
}

func contains(list []string, s string) bool {
	return slices.Contains(list, s)
}

// values is a profile as JSON has it.
func values(p *profiles.Profile) (map[string]any, error) {
	data, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode profile %q: %w", p.Name, err)
	}
	var out map[string]any
	return out, json.Unmarshal(data, &out)
}

// value looks a field up by its path in a profile file. JSON calls some fields otherwise, by their units.
func value(in map[string]any, field string) string {
	names := map[string]string{
		"limits.memory": "limits.memoryBytes", "enforcement.landlock": "landlock", "filesystem.workspace.quota": "filesystem.workspace.quotaBytes",
		"network.addresses": "network.allowPrivate",
	}
	path := field
	if other, ok := names[field]; ok {
		path = other
	}
	var at any = in
	for key := range strings.SplitSeq(path, ".") {
		object, _ := at.(map[string]any)
		at = object[key]
	}
	ports := strings.HasSuffix(field, "Ports") // of which no list is all, and an empty one none
	switch v := at.(type) {
	case nil:
		return pick(ports, "all", "-")
	case []any:
		var out []string
		for _, item := range v {
			out = append(out, fmt.Sprint(item))
		}
		return list(out, pick(ports, "none", "-"))
	case float64:
		return fmt.Sprintf("%.0f", v)
	default:
		return fmt.Sprint(v)
	}
}
