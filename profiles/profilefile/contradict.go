package profilefile

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/profiles"
)

// contradictions refuses what one file says and takes back, and what matches everything: whoever wrote it believes in
// one of the two. Only what the file itself has counts: to take back what a parent grants is what extending is for.
func contradictions(p *profiles.Profile, root *yaml.Node) error {
	for _, check := range []func(*profiles.Profile, *yaml.Node) error{
		contradictSyscalls, contradictEnvironment, contradictHide, contradictWorkspace, contradictNetwork, contradictInspect,
	} {
		if err := check(p, root); err != nil {
			return err
		}
	}
	return nil
}

// said returns the value of a key of the file, nil if the file does not have it.
func said(root *yaml.Node, keys ...string) *yaml.Node {
	n := root
	for _, k := range keys {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		n = child(n, k)
	}
	return n
}

// item refuses item i of a list.
func item(list *yaml.Node, i int, format string, args ...any) error {
	line := list.Line
	if i < len(list.Content) {
		line = list.Content[i].Line
	}
	return &lineError{line, fmt.Errorf(format, args...)}
}

func contradictSyscalls(p *profiles.Profile, root *yaml.Node) error {
	deny := said(root, "syscalls", "deny")
	if deny == nil || said(root, "syscalls", "allow") == nil {
		return nil
	}
	for i, name := range p.Syscalls.Deny {
		if slices.Contains(p.Syscalls.Allow, name) {
			return item(deny, i, "syscalls.deny: %s is in syscalls.allow, too: say one of the two", name)
		}
	}
	return nil
}

func contradictEnvironment(p *profiles.Profile, root *yaml.Node) error {
	if list := said(root, "environment", "allow"); list != nil {
		if i := slices.IndexFunc(p.Environment.Allow, everything); i >= 0 {
			return item(list, i, "environment.allow: %q matches every variable: without the list all are kept", p.Environment.Allow[i])
		}
	}
	deny := said(root, "environment", "deny")
	if deny == nil {
		return nil
	}
	for i, pattern := range p.Environment.Deny {
		if everything(pattern) {
			return item(deny, i, "environment.deny: %q matches every variable, PATH too: environment.allow lists what is kept", pattern)
		}
		for name := range p.Environment.Set {
			if ok, err := path.Match(pattern, name); err == nil && ok && said(root, "environment", "set") != nil {
				return item(deny, i, "environment.deny: %q removes %s, which environment.set adds: say one of the two", pattern, name)
			}
		}
	}
	return nil
}

// everything reports whether a pattern has nothing but asterisks.
func everything(pattern string) bool { return pattern != "" && strings.Trim(pattern, "*") == "" }

func contradictHide(p *profiles.Profile, root *yaml.Node) error {
	hide := said(root, "filesystem", "hide")
	if hide == nil {
		return nil
	}
	for i, h := range p.Filesystem.Hide {
		for _, set := range []struct {
			key   string
			paths []string
		}{{"read", p.Filesystem.Read}, {"execute", p.Filesystem.Execute}, {"write", p.Filesystem.Write}} {
			if said(root, "filesystem", set.key) == nil {
				continue
			}
			for _, g := range set.paths {
				if g == h || strings.HasPrefix(g, h+"/") {
					return item(hide, i, "filesystem.hide: %s covers %s, which filesystem.%s grants: say one of the two", h, g, set.key)
				}
			}
		}
	}
	return nil
}

func contradictWorkspace(p *profiles.Profile, root *yaml.Node) error {
	w := &p.Filesystem.Workspace
	if n := said(root, "filesystem", "workspace", "memory"); n != nil && p.Limits.MemoryBytes > 0 && w.MemoryBytes >= p.Limits.MemoryBytes {
		return &lineError{n.Line, fmt.Errorf("filesystem.workspace.memory: counts against limits.memory (%d bytes), which must be larger", p.Limits.MemoryBytes)}
	}
	mode := said(root, "filesystem", "workspace", "mode")
	if mode == nil {
		return nil
	}
	for _, key := range []string{"quota", "memory", "copy"} {
		if n := said(root, "filesystem", "workspace", key); n != nil && w.Mode != profiles.WorkspaceOverlay {
			return &lineError{n.Line, fmt.Errorf("filesystem.workspace.%s: means nothing with the mode %s, which has no layer", key, w.Mode)}
		}
	}
	write := said(root, "filesystem", "write")
	if write == nil || w.Mode != profiles.WorkspaceReadonly {
		return nil
	}
	for i, g := range p.Filesystem.Write {
		if g == "$WORKSPACE" || strings.HasPrefix(g, "$WORKSPACE/") {
			return item(write, i, "filesystem.write: %s can't be written with filesystem.workspace.mode readonly: say one of the two", g)
		}
	}
	return nil
}

func contradictNetwork(p *profiles.Profile, root *yaml.Node) error {
	allow, deny := said(root, "network", "allow"), said(root, "network", "deny")
	if allow == nil {
		return nil
	}
	if said(root, "network", "connectPorts") != nil {
		for i, r := range p.Network.Allow {
			if rule, err := egress.ParseRule(r); err == nil && !connects(&p.Network, rule) {
				return item(allow, i, "network.allow: %s is on no port of network.connectPorts: say one of the two", r)
			}
		}
	}
	if deny == nil {
		return nil
	}
	for i, r := range p.Network.Deny {
		if slices.Contains(p.Network.Allow, r) {
			return item(deny, i, "network.deny: %q is in network.allow, too: say one of the two", r)
		}
	}
	return nil
}

// contradictInspect refuses a credential that is put into inspected requests where no rule lets a request pass.
func contradictInspect(p *profiles.Profile, root *yaml.Node) error {
	list, n := said(root, "network", "credentials"), &p.Network
	if list == nil {
		return nil
	}
	policy, err := egress.Compile(egress.Config{Allow: n.Allow, Deny: n.Deny, RuleSets: n.RuleSets, Addresses: n.Addresses})
	if err != nil {
		return err
	}
	for i := range n.Credentials {
		c := &n.Credentials[i]
		host, text, _ := strings.Cut(c.Destination, ":")
		port, err := strconv.ParseUint(cmp.Or(text, "443"), 10, 16)
		if !c.Inspect || err != nil { // Validate has said what a destination is
			continue
		}
		if d := policy.Connect(host, uint16(port), egress.TLS); !d.Allowed {
			return item(list, i, "network.credentials: %s is for requests to %s, and they do not pass: %s", c.Name, c.Destination, d.Reason)
		}
	}
	return nil
}

// connects reports whether a port of a rule can be connected to.
func connects(n *profiles.Network, rule egress.Rule) bool {
	return slices.ContainsFunc(n.ConnectPorts, func(r profiles.PortRange) bool { return rule.OnPorts(r.First, r.Last) })
}

// checkRules finds the line of a rule on the network that can't be read, and of a name that is spelt in an odd way.
func checkRules(p *profiles.Profile, root *yaml.Node) error {
	for _, set := range []struct {
		key   string
		rules []string
	}{{"allow", p.Network.Allow}, {"deny", p.Network.Deny}} {
		list := said(root, "network", set.key)
		if list == nil {
			continue
		}
		for i, r := range set.rules {
			if _, err := egress.ParseRule(r); err != nil {
				return item(list, i, "network.%s: %w", set.key, err)
			}
			if host := hostOf(r); host != strings.ToLower(host) {
				return item(list, i, "network.%s: %q: write the name in lower case: %s", set.key, r, strings.ToLower(host))
			}
		}
	}
	return nil
}

// hostOf cuts the host with its port out of a rule: methods come before it, the fingerprints of SSH keys behind.
func hostOf(rule string) string {
	rule, _, _ = strings.Cut(rule, " SHA256:")
	rest := rule[strings.LastIndexByte(rule, ' ')+1:]
	if _, after, ok := strings.Cut(rest, "://"); ok {
		rest = after
	}
	host, _, _ := strings.Cut(rest, "/")
	return host
}
