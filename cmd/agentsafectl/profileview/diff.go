package profileview

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

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
		texts := apart(at(valuesA, field), at(valuesB, field))
		left, right := spell(field, texts[0]), spell(field, texts[1])
		if left == right && strings.HasPrefix(field, "filesystem.workspace.") {
			continue // the mode decides what the field means, and has a row of its own
		}
		t.Rows = append(t.Rows, []string{field, more, left, right})
	}
	return t, nil
}

// apart leaves out of two lists what they have in common if they would not be shown as a whole.
func apart(a, b any) [2]any {
	x, isList := a.([]any)
	y, areLists := b.([]any)
	if !isList || !areLists || len(x) <= few && len(y) <= few {
		return [2]any{a, b}
	}
	without := func(list, other []any) []any {
		kept := slices.DeleteFunc(slices.Clone(list), func(v any) bool { return slices.Contains(other, v) })
		if n := len(list) - len(kept); n > 0 {
			kept = append(kept, fmt.Sprintf("(and %d in common)", n))
		}
		return kept
	}
	return [2]any{without(x, y), without(y, x)}
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

// at looks a field up by its path in a profile file. JSON calls some fields otherwise, by their units.
func at(in map[string]any, field string) any {
	names := map[string]string{
		"limits.memory": "limits.memoryBytes", "enforcement.landlock": "landlock", "filesystem.workspace.quota": "filesystem.workspace.quotaBytes",
		"network.addresses": "network.allowPrivate",
	}
	path := field
	if other, ok := names[field]; ok {
		path = other
	}
	var found any = in
	for key := range strings.SplitSeq(path, ".") {
		object, _ := found.(map[string]any)
		found = object[key]
	}
	if field == "network.allow" { // which is about what the rule sets stand for, too
		sets, _ := at(in, "network.ruleSets").([]any)
		rules, _ := found.([]any)
		return slices.Concat(sets, rules)
	}
	return found
}

func spell(field string, found any) string {
	ports := strings.HasSuffix(field, "Ports") // of which no list is all, and an empty one none
	switch v := found.(type) {
	case nil:
		return pick(ports, "all", "-")
	case []any:
		var out []string
		for _, item := range v {
			out = append(out, fmt.Sprint(item))
		}
		return list(out, pick(ports, "none", "-"))
	case float64:
		switch key := field[strings.LastIndexByte(field, '.')+1:]; key {
		case "wallClock", "cpuTime":
			return time.Duration(v).String()
		case "memory", "quota", "outputBytes", "egressBytes", "ingressBytes", "layerBytes":
			return size(int64(v))
		}
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}
