package profilefile

import "testing"

func TestHostOf(t *testing.T) {
	for rule, want := range map[string]string{
		"example.org:443":                           "example.org:443",
		"GET,HEAD http://Example.org:80/Path":       "Example.org:80",
		"ssh://git.test:2222 SHA256:AbC,SHA256:dEf": "git.test:2222",
		"ssh://Git.test SHA256:AbC":                 "Git.test",
		"*.pypi.org":                                "*.pypi.org",
	} {
		if got := hostOf(rule); got != want {
			t.Errorf("%q: got %q, want %q", rule, got, want)
		}
	}
}
