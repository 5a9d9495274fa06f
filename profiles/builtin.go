package profiles

import (
	"fmt"
	"slices"
	"strings"
)

// Names of built-in profiles that the code refers to.
const (
	NameAgent = "agent"
	NameNone  = "none"
	// DefaultName is the profile of a container for which nobody chose one.
	DefaultName = NameAgent
)

// builtinRow is a row of the table of built-in profiles.
type builtinRow struct {
	name, extends, description string
	// change makes the profile out of the one that it extends.
	change func(p *Profile)
}

// builtins are in the order of the lists that people see. A row comes after the one that it extends.
func builtins() []builtinRow {
	return []builtinRow{
		{NameNone, "", "the spec as the engine wrote it, without any policy of ours", func(p *Profile) {
			p.Unrestricted, p.Network.Mode, p.Landlock = true, NetworkHost, LandlockOff
		}},
		{NameAgent, "", "unreviewed code in a container as engines make them, with the kernel's attack surface cut", agentProfile},
		{"offline", NameAgent, "no network and no secrets; what is written to the workspace waits for promotion", func(p *Profile) {
			p.Network = Network{Mode: NetworkNone}
			overlaid(p)
			withoutSecrets(p)
		}},
		{"lint", "offline", "reads the workspace and writes scratch files only", func(p *Profile) {
			p.Filesystem.Workspace = Workspace{Mode: WorkspaceReadonly}
			p.Filesystem.Write = []string{"/tmp", "/var/tmp", "$HOME"}
		}},
		{"test", NameAgent, "runs tests; packages come from the registries", func(p *Profile) {
			p.Network = Network{Mode: NetworkGateway, RuleSets: registries()}
			p.Filesystem.Write = []string{"/tmp", "/var/tmp", "/run", "$HOME", "$WORKSPACE"}
			overlaid(p)
			withoutSecrets(p)
		}},
		{"build", "test", "builds and installs; packages come from the registries and from GitHub", func(p *Profile) {
			p.Network.RuleSets = append(registries(), "debian", "github", "ubuntu")
			p.Filesystem.Write = []string{"/"}
		}},
		{"research", NameAgent, "reads the web; no secrets, and the workspace can't be written", func(p *Profile) {
			p.Network = Network{Mode: NetworkGateway, Allow: []string{"*:443", "*:80"}}
			p.Filesystem.Write = []string{"/tmp", "/var/tmp", "/run", "$HOME"}
			p.Filesystem.Workspace = Workspace{Mode: WorkspaceReadonly}
			withoutSecrets(p)
			p.Trust.ExternalWrite = true
		}},
		{"publish", NameAgent, "publishes what was reviewed: secrets, and the registries alone to send them to", func(p *Profile) {
			p.Network = Network{Mode: NetworkGateway, RuleSets: append(registries(), "docker", "github", "gitlab")}
			p.Filesystem.Write = []string{"/tmp", "/var/tmp", "/run", "$HOME", "$WORKSPACE"}
			overlaid(p)
			p.Trust = Trust{Secrets: true, ExternalWrite: true}
		}},
		{"claude-code", "build", "Claude Code with its model's hosts, over build", codingAgent(
			"*.anthropic.com:443", "claude.ai:443", "*.claude.ai:443", "*.claude.com:443")},
		{"codex", "build", "OpenAI Codex with its model's hosts, over build", func(p *Profile) {
			codingAgent("*.openai.com:443", "chatgpt.com:443", "*.chatgpt.com:443")(p)
			p.Syscalls.Packs = []Pack{PackBrowser} // its own sandbox makes a user namespace
		}},
		{"gemini-cli", "build", "Gemini CLI with its model's hosts, over build", codingAgent(
			"*.googleapis.com:443", "accounts.google.com:443", "codeassist.google.com:443")},
		{"opencode", "build", "OpenCode with its catalogue and the common models' hosts, over build", codingAgent(
			"opencode.ai:443", "*.opencode.ai:443", "models.dev:443", "*.anthropic.com:443", "*.openai.com:443",
			"generativelanguage.googleapis.com:443", "openrouter.ai:443")},
		{"aider", "build", "aider with the common models' hosts, over build", codingAgent(
			"*.anthropic.com:443", "*.openai.com:443", "generativelanguage.googleapis.com:443", "openrouter.ai:443",
			"*.deepseek.com:443", "*.litellm.ai:443")},
	}
}

// BuiltinNames lists the built-in profiles.
func BuiltinNames() []string {
	var out []string
	for _, b := range builtins() {
		out = append(out, b.name)
	}
	return out
}

// IsBuiltin reports whether a name is a built-in profile's.
func IsBuiltin(name string) bool { return slices.Contains(BuiltinNames(), name) }

// Builtin returns a new copy of a built-in profile. It may be one that this version can't enforce yet:
// [Profile.Validate] tells.
func Builtin(name string) (*Profile, error) {
	if name == NameAgent {
		return agent(), nil // the one of nearly every start
	}
	for _, b := range builtins() {
		if b.name != name {
			continue
		}
		p := &Profile{}
		if b.extends != "" {
			var err error
			if p, err = Builtin(b.extends); err != nil {
				return nil, err
			}
		}
		b.change(p)
		p.Name, p.Extends, p.Description = b.name, b.extends, b.description
		return p, nil
	}
	return nil, fmt.Errorf("profile %q: not built in (%s)", name, strings.Join(BuiltinNames(), ", "))
}

func agent() *Profile {
	p := &Profile{Name: NameAgent, Description: "unreviewed code in a container as engines make them, with the kernel's attack surface cut"}
	agentProfile(p)
	return p
}

// agentProfile is the default: an image that runs under Docker's defaults runs unmodified, a set-id program such as sudo
// excepted. The file system is granted as a whole, so Landlock adds device nodes and ioctls of devices and little else.
func agentProfile(p *Profile) {
	p.Capabilities = agentCapabilities()
	p.Filesystem = Filesystem{Read: []string{"/"}, Execute: []string{"/"}, Write: []string{"/"}}
	p.Network = Network{Mode: NetworkEngine}
	p.Landlock = LandlockRequired
	p.Trust = Trust{UntrustedInput: true, Secrets: true, ExternalWrite: true}
}

func overlaid(p *Profile) {
	p.Filesystem.Workspace = Workspace{Mode: WorkspaceOverlay, Promote: "manual"}
	p.Exec.Transaction = "auto"
}

// withoutSecrets removes the variables that look like secrets, hides their usual places, and refuses mounts of them.
func withoutSecrets(p *Profile) {
	p.Environment.Deny = secretVariables()
	p.Filesystem.Hide = []string{
		"~/.ssh", "~/.gnupg", "~/.aws", "~/.azure", "~/.kube", "~/.docker", "~/.config/gcloud", "~/.config/gh", "~/.netrc",
		"~/.git-credentials", "~/.pypirc", "**/.env",
	}
	p.Trust = Trust{UntrustedInput: true}
}

// registries are the rule sets of what build tools download from.
func registries() []string {
	return []string{"crates", "go", "gradle", "maven", "npm", "nuget", "packagist", "pypi", "rubygems"}
}

// codingAgent adds an agent's hosts. Its key is best left to the gateway (network.credentials); a login that it keeps in
// its own folder below $HOME works as well, and then it is a secret that it holds.
func codingAgent(hosts ...string) func(*Profile) {
	return func(p *Profile) { p.Network.Allow = hosts }
}
