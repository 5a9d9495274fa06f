package egress

import (
	"fmt"
	"slices"
	"strings"
)

// ruleSet is what a client of one ecosystem needs in order to install packages.
type ruleSet struct {
	name  string
	rules []string
}

// ruleSets are written as domain suffixes, because the hosts below them change and differ from client to client.
func ruleSets() []ruleSet {
	return []ruleSet{
		{"crates", []string{"crates.io:443", "*.crates.io:443", "*.rust-lang.org:443"}},
		{"debian", []string{"*.debian.org:80,443"}},
		{"docker", []string{"*.docker.io:443", "*.docker.com:443"}},
		{"github", []string{"github.com:443", "*.github.com:443", "*.githubusercontent.com:443", "ssh://github.com"}},
		{"gitlab", []string{"gitlab.com:443", "*.gitlab.com:443", "ssh://gitlab.com"}},
		{"go", []string{"*.golang.org:443", "golang.org:443", "*.go.dev:443", "go.dev:443"}},
		{"gradle", []string{"*.gradle.org:443"}},
		{"maven", []string{"*.maven.org:443", "*.maven.apache.org:443"}},
		{"npm", []string{"*.npmjs.org:443", "*.npmjs.com:443", "*.yarnpkg.com:443"}},
		{"nuget", []string{"*.nuget.org:443"}},
		{"packagist", []string{"packagist.org:443", "*.packagist.org:443"}},
		{"pypi", []string{"pypi.org:443", "*.pypi.org:443", "*.pythonhosted.org:443"}},
		{"rubygems", []string{"rubygems.org:443", "*.rubygems.org:443"}},
		{"ubuntu", []string{"*.ubuntu.com:80,443"}},
	}
}

// RuleSets returns the names of the rule sets, sorted.
func RuleSets() []string {
	var out []string
	for _, s := range ruleSets() {
		out = append(out, s.name)
	}
	return out
}

// RuleSet returns the rules of a named ecosystem.
func RuleSet(name string) ([]string, error) {
	for _, s := range ruleSets() {
		if s.name == name {
			return slices.Clone(s.rules), nil
		}
	}
	return nil, fmt.Errorf("network rule set %q is not one of %s", clip(name), strings.Join(RuleSets(), ", "))
}
