package layer

import (
	"path"
	"strings"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// surface is a rule for files that a program on the host executes, or obeys, without being asked to run them.
type surface struct {
	// pattern is for path.Match. One without a slash is matched against each component of a path, so that it covers what
	// is below a directory of that name; one with slashes against the whole, from any component on.
	pattern string
	why     string
}

// surfaces are left out of a promotion unless they are named. What a person runs by hand (a Makefile, a test) is not
// listed: promoting source code is what promotion is for.
var surfaces = []surface{ //nolint:gochecknoglobals // a constant table
	{".git", "git runs hooks, filters, pagers and editors that its directory names"},
	{".gitmodules", "git fetches and runs what submodules name"},
	{".gitattributes", "git runs the filters and drivers that attributes name"},
	{".githooks", "git hooks"},
	{".husky", "git hooks"},
	{".pre-commit-config.yaml", "git hooks"},
	{"lefthook.y*ml", "git hooks"},
	{".envrc", "direnv executes it on entering the directory"},
	{".env", "shells and tools load it"},
	{".mise.toml", "mise executes it on entering the directory"},
	{".tool-versions", "asdf and mise install what it names"},
	{".github/workflows", "runs in continuous integration, with its secrets"},
	{".github/actions", "runs in continuous integration, with its secrets"},
	{".gitlab-ci.yml", "runs in continuous integration, with its secrets"},
	{".circleci", "runs in continuous integration, with its secrets"},
	{".woodpecker*", "runs in continuous integration, with its secrets"},
	{"Jenkinsfile", "runs in continuous integration, with its secrets"},
	{"azure-pipelines.y*ml", "runs in continuous integration, with its secrets"},
	{".vscode", "the editor runs tasks and the programs its settings name"},
	{".idea", "the editor runs the configurations in it"},
	{".devcontainer", "the editor builds and runs it"},
	{".exrc", "vi executes it"},
	{".nvimrc", "the editor executes it"},
	{".nvim.lua", "the editor executes it"},
	{".vimrc", "the editor executes it"},
	{".dir-locals.el", "the editor executes it"},
	{".claude", "an agent on the host obeys it: hooks, permissions"},
	{".codex", "an agent on the host obeys it"},
	{".cursor", "an agent on the host obeys it"},
	{".gemini", "an agent on the host obeys it"},
	{".opencode", "an agent on the host obeys it"},
	{"opencode.json*", "an agent on the host obeys it"},
	{".aider*", "an agent on the host obeys it"},
	{".mcp.json", "an agent on the host starts the servers in it"},
	{"CLAUDE.md", "an agent on the host obeys it"},
	{"AGENTS.md", "an agent on the host obeys it"},
	{"GEMINI.md", "an agent on the host obeys it"},
	{"package.json", "package managers run its scripts at installation"},
	{".npmrc", "package managers run and trust what it names"},
	{".yarnrc*", "package managers run and trust what it names"},
	{".pnpmfile.cjs", "package managers execute it"},
	{".cargo/config*", "cargo runs the programs it names"},
	{"pip.conf", "package managers trust what it names"},
	{".bashrc", "a shell executes it"},
	{".bash_profile", "a shell executes it"},
	{".profile", "a shell executes it"},
	{".zshrc", "a shell executes it"},
	{".zshenv", "a shell executes it"},
	{".ssh", "decides who may log in"},
	{".netrc", "credentials"},
	{"*.desktop", "the desktop runs it"},
	{"*.service", "systemd runs it"},
}

// Surface returns why a path is an execution surface of the host; "" if it is none.
func Surface(unsafePath string) string {
	parts := strings.Split(unsafePath, "/")
	for _, s := range surfaces {
		want := strings.Split(s.pattern, "/")
		for i := range parts {
			if matchesAt(parts[i:], want) {
				return s.why
			}
		}
	}
	return ""
}

// matchesAt matches the first components. Case is ignored: a host folder may stand on a file system that does.
func matchesAt(parts, want []string) bool {
	if len(parts) < len(want) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(strings.ToLower(want[i]), strings.ToLower(parts[i])); err != nil || !ok {
			return false
		}
	}
	return true
}

// surface is Surface for a path of the workspace, whose folder may be one itself: a repository's .git, .github/workflows.
func (w *Workspace) surface(unsafePath string) string {
	dir, base := path.Split(path.Clean(w.Source))
	return Surface(path.Join(path.Base(dir), base, unsafePath))
}

// flag returns why a change needs to be named to be promoted; "" if it doesn't.
func flag(w *Workspace, r tree.Root, c *tree.Change) string {
	if why := w.surface(c.Path); why != "" {
		return why
	}
	if c.Op == tree.Delete || c.Kind != tree.Symlink {
		return ""
	}
	target, err := r.Readlink(c.Path)
	if err != nil {
		return "a symlink that can't be read"
	}
	if path.IsAbs(target) || strings.HasPrefix(path.Join(path.Dir(c.Path), target), "..") {
		return "a symlink that leads out of the folder"
	}
	return ""
}
