package netns

import (
	"fmt"
	"strings"
)

// String prints the rules in nft's own syntax: what it prints can be loaded
// with "nft -f -", and the tests compare it with nft's listing of what Install
// made. Modes without rules print one comment.
func (r *Rules) String() string {
	t := planTable(r.policy)
	if t == nil {
		return fmt.Sprintf("# network mode %q: no rules\n", string(r.policy.Mode))
	}
	var w strings.Builder
	fmt.Fprintf(&w, "table inet %s {\n", tableName)
	for i := range t.sets {
		t.sets[i].print(&w)
	}
	for i := range t.chains {
		t.chains[i].print(&w)
	}
	w.WriteString("}\n")
	return w.String()
}

func (s *set) print(w *strings.Builder) {
	fmt.Fprintf(w, "\tset %s {\n\t\ttype %s\n", s.name, s.key.name)
	if s.sizeMax > 0 {
		fmt.Fprintf(w, "\t\tsize %d\n", s.sizeMax)
	}
	if s.interval {
		w.WriteString("\t\tflags interval\n")
	}
	for i, e := range s.elements {
		sep, tail := "\t\t\t     ", ",\n"
		if i == 0 {
			sep = "\t\telements = { "
		}
		if i == len(s.elements)-1 {
			tail = " }\n"
		}
		w.WriteString(sep + e.text() + tail)
	}
	w.WriteString("\t}\n")
}

func (c *chain) print(w *strings.Builder) {
	fmt.Fprintf(w, "\tchain %s {\n", c.name)
	if c.hook.name != "" {
		kind, priority, policy := c.hook.plan()
		verdict := map[uint32]string{nfDrop: "drop", nfAccept: "accept"}[policy]
		fmt.Fprintf(w, "\t\ttype %s hook %s priority %d; policy %s;\n", kind, c.hook.name, priority, verdict)
	}
	for _, r := range c.rules {
		fmt.Fprintf(w, "\t\t%s\n", r.text)
	}
	w.WriteString("\t}\n")
}
