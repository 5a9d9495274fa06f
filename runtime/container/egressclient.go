package container

import (
	"slices"
	"strconv"
	"strings"

	"github.com/agentsafe/agentsafe/netns/gateway/wire"
	"github.com/agentsafe/agentsafe/profiles"
)

// clientEnv tells a program that knows nothing of base URLs where a credential's destination is: npm and pip by the
// variables that name their registry, git by one that has it put the gateway's address in place of the destination's.
// So `git clone https://HOST/...` works as it is written. Sources: npm-config(7), pip's configuration, git-config(1).
func clientEnv(env []string, c *profiles.Credential) []string {
	host := c.Name + "." + wire.Zone
	base := "http://" + host + c.BasePath
	switch c.Client {
	case "npm":
		env = setEnv(env, "npm_config_registry", base+"/")
		// What a registry says of packages has the host in it that it thinks it is.
		env = setEnv(env, "npm_config_replace_registry_host", "always")
	case "pip":
		if c.BasePath == "" {
			base += "/simple"
		}
		env = setEnv(env, "PIP_INDEX_URL", base)
		env = setEnv(env, "PIP_TRUSTED_HOST", host) // it never leaves the container's network namespace
	case "git":
		destination := strings.TrimSuffix(c.Destination, ":443")
		env = gitConfig(env, "url."+base+"/.insteadOf", "https://"+destination+c.BasePath+"/")
	}
	return env
}

// gitConfig adds a line of configuration behind those that the environment has already.
func gitConfig(env []string, key, value string) []string {
	const count = "GIT_CONFIG_COUNT"
	n := 0
	for _, kv := range env {
		if text, ok := strings.CutPrefix(kv, count+"="); ok {
			if have, err := strconv.Atoi(text); err == nil && have > 0 {
				n = have
			}
		}
	}
	for i := range n { // an exec may have been given the variables of the first process
		at := strconv.Itoa(i)
		if slices.Contains(env, "GIT_CONFIG_KEY_"+at+"="+key) && slices.Contains(env, "GIT_CONFIG_VALUE_"+at+"="+value) {
			return env
		}
	}
	at := strconv.Itoa(n)
	env = setEnv(env, "GIT_CONFIG_KEY_"+at, key)
	env = setEnv(env, "GIT_CONFIG_VALUE_"+at, value)
	return setEnv(env, count, strconv.Itoa(n+1))
}
