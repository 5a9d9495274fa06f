package cmdline

import (
	"strings"
	"testing"
)

func TestProfileOfProgramName(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/bin/containerd-shim-agentsafe-v2":         "",
		"/usr/bin/containerd-shim-agentsafe-offline-v2": "offline",
		"containerd-shim-agentsafe-my-own-v2":           "my-own",
		"something":                                     "",
	} {
		if got := profileOf(program); got != want {
			t.Errorf("%s: got %q, want %q", program, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	l, err := Parse("/usr/bin/containerd-shim-agentsafe-offline-v2", []string{"-namespace", "k8s.io", "-id", "c1", "-publish-binary", "x", "start"})
	if err != nil || l.Namespace != "k8s.io" || l.ID != "c1" || l.Profile != "offline" || l.Action != "start" {
		t.Errorf("got %+v, %v", l, err)
	}
	for name, tc := range map[string]struct {
		args []string
		err  string
	}{
		"no namespace": {[]string{"-id", "a", "start"}, "-namespace is missing"},
		"no id":        {[]string{"-namespace", "n", "start"}, "-id: invalid container ID: empty"},
		"escape":       {[]string{"-namespace", "n", "-id", "../a", "start"}, "-id: invalid container ID"},
		"namespace":    {[]string{"-namespace", "a/b", "-id", "a"}, "-namespace: invalid container ID"},
		"unknown":      {[]string{"-nonsense"}, "nonsense"},
	} {
		if _, err := Parse("p", tc.args); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: got %v, want an error with %q", name, err, tc.err)
		}
	}
	if l, err := Parse("p", []string{"-info"}); err != nil || !l.Info {
		t.Errorf("-info needs no names: %v", err)
	}
}
