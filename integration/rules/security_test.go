package rules

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityPage: every test that docs/SECURITY.md and docs/CONFORMANCE.md name exists, and every attack of
// integration/attacks is named.
func TestSecurityPage(t *testing.T) {
	page := string(read(t, "docs/SECURITY.md"))
	declared := map[string]string{}
	for _, name := range tracked(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(string(read(t, name)), -1) {
			declared[m[1]] = filepath.Dir(name)
		}
	}
	for _, name := range regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(page, -1) {
		if declared[name] == "" {
			t.Errorf("docs/SECURITY.md names %s, which does not exist", name)
		}
	}
	list := string(read(t, "docs/CONFORMANCE.md"))
	for _, name := range regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(list, -1) {
		if declared[name] == "" {
			t.Errorf("docs/CONFORMANCE.md names %s, which does not exist", name)
		}
	}
	for name, dir := range declared {
		if dir == "integration/attacks" && name != "TestMain" && !strings.Contains(page, name) {
			t.Errorf("docs/SECURITY.md does not name %s", name)
		}
	}
}
