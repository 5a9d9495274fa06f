package profiles

import "fmt"

// unenforcedField is a field of the schema that this version does not enforce yet.
type unenforcedField struct {
	// field is the path of the key in a profile file.
	field string
	set   func(p *Profile) bool
}

// unenforced lists them. A profile must not promise what nothing enforces, so [Profile.Validate] refuses a profile that
// sets one. Whoever brings the enforcement removes the line.
func unenforced() []unenforcedField {
	return nil // everything that the schema has is enforced
}

func (p *Profile) validateEnforced() error {
	for _, u := range unenforced() {
		if u.set(p) {
			return fmt.Errorf("%s: not enforced by this version, and a profile must not promise what nothing enforces", u.field)
		}
	}
	return nil
}

func (w Workspace) mode() WorkspaceMode {
	if w.Mode == "" {
		return WorkspaceDirect
	}
	return w.Mode
}
