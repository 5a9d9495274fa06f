package profiles

import "fmt"

// RefusedError says that a spec asks for what its profile does not grant.
type RefusedError struct {
	// What was asked for, in the words of the spec.
	What string
	// Rule that refuses it, and why the rule is there.
	Rule string
	// Allow is what would allow it.
	Allow string
}

// Error names what was refused, the rule, and the way out.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("refused: %s: %s; allowed by %s", e.What, e.Rule, e.Allow)
}

// refuse makes a RefusedError. key is what a profile would have to set, in the words of a profile file; "" if no key
// grants it.
func (p *Profile) refuse(what, rule, key string) *RefusedError {
	e := &RefusedError{
		What: what, Rule: fmt.Sprintf("profile %q: %s", p.Name, rule),
		Allow: fmt.Sprintf("the profile %q, if the host's configuration or runtime handler selects it", NameNone),
	}
	if key != "" {
		e.Allow = fmt.Sprintf("a profile with `%s` or the profile %q, if the host's configuration or runtime handler selects it", key, NameNone)
	}
	return e
}

// Note records a tightening, or a limit of what the kernel can enforce.
type Note struct {
	// Rule is a stable word: "capabilities", "seccomp", "landlock", ...
	Rule string `json:"rule"`
	// Text is for people.
	Text string `json:"text"`
	// Routine is set where the engines' own defaults cause the note, so that it comes with nearly every container.
	Routine bool `json:"routine,omitempty"`
}

func (n Note) String() string { return n.Rule + ": " + n.Text }
