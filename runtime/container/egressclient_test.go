package container

import (
	"slices"
	"testing"

	"github.com/agentsafe/agentsafe/profiles"
)

func TestClientEnv(t *testing.T) {
	const base = "http://c.agentsafe.internal"
	git := func(count string, rest ...string) []string {
		return append(rest, "GIT_CONFIG_COUNT="+count)
	}
	first := []string{"GIT_CONFIG_KEY_0=url." + base + "/.insteadOf", "GIT_CONFIG_VALUE_0=https://git.example.com/"}
	for name, tc := range map[string]struct {
		env  []string
		c    profiles.Credential
		want []string
	}{
		"none": {[]string{"A=1"}, profiles.Credential{Name: "c"}, []string{"A=1"}},
		"npm":  {[]string{"npm_config_registry=x"}, profiles.Credential{Name: "c", Client: "npm"}, []string{"npm_config_registry=" + base + "/", "npm_config_replace_registry_host=always"}},
		"npm below a path": {
			nil,
			profiles.Credential{Name: "c", Client: "npm", BasePath: "/api/npm"},
			[]string{"npm_config_registry=" + base + "/api/npm/", "npm_config_replace_registry_host=always"},
		},
		"pip": {nil, profiles.Credential{Name: "c", Client: "pip"}, []string{"PIP_INDEX_URL=" + base + "/simple", "PIP_TRUSTED_HOST=c.agentsafe.internal"}},
		"git": {nil, profiles.Credential{Name: "c", Client: "git", Destination: "git.example.com:443"}, git("1", first...)},
		"git at a port, below a path": {
			nil,
			profiles.Credential{Name: "c", Client: "git", Destination: "git.example.com:8443", BasePath: "/org"},
			git("1", "GIT_CONFIG_KEY_0=url."+base+"/org/.insteadOf", "GIT_CONFIG_VALUE_0=https://git.example.com:8443/org/"),
		},
		"git again": {git("1", first...), profiles.Credential{Name: "c", Client: "git", Destination: "git.example.com:443"}, git("1", first...)},
		"git behind another": {
			[]string{"GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=x", "GIT_CONFIG_COUNT=1"},
			profiles.Credential{Name: "c", Client: "git", Destination: "git.example.com"},
			git("2", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=x", "GIT_CONFIG_KEY_1=url."+base+"/.insteadOf", "GIT_CONFIG_VALUE_1=https://git.example.com/"),
		},
	} {
		if got := clientEnv(slices.Clone(tc.env), &tc.c); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
