package network

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// agent is a coding agent under the built-in profile that is meant for it.
type agent struct {
	name         string   // that of its section in docs/AGENTS.md, which has the profile and the command line
	packages     []string // of npm's registry; nil is a stand-in, which needs nothing
	paths        []string // below node_modules, where its programs are; .bin is another
	host, header string   // of the model's API: who it is, and what the key is sent in
	config       string   // profile; "" is the section's
	script       string   // likewise
}

// standIn is the least that an agent does: it asks the model, runs what that says, and reports.
const standIn = `cat >/tmp/agent.py <<'P'
import json, os, subprocess, urllib.request as u
said = [{"role": "user", "content": "do the work"}]
while True:
    q = {"messages": said, "tools": [{"name": "bash"}]}
    r = u.Request(os.environ["MODEL_BASE_URL"] + "/messages", json.dumps(q).encode(), {"x-api-key": os.environ["MODEL_API_KEY"]})
    block = json.load(u.urlopen(r))["content"][0]
    if block["type"] == "text": break
    done = subprocess.run(["sh", "-c", block["input"]["command"]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said += [{"role": "user", "content": [{"type": "tool_result", "content": done.stdout}]}]
print(block["text"])
P
python3 /tmp/agent.py`

// agents: the real ones come from npm's registry, and are 100 to 400 MB each.
func agents() []agent {
	list := []agent{
		{name: "Claude Code", packages: []string{"@anthropic-ai/claude-code@2.1.332"}, paths: []string{"@anthropic-ai/claude-code-linux-x64"}, host: "api.anthropic.com"},
		{name: "Codex", packages: []string{"@openai/codex@0.171.0"}, host: "api.openai.com", header: "Bearer "},
		{name: "Gemini CLI", packages: []string{"@google/gemini-cli@0.61.0"}, host: "generativelanguage.googleapis.com"},
		{name: "OpenCode", packages: []string{"opencode-ai@1.18.33"}, paths: []string{"opencode-linux-x64/bin"}, host: "api.anthropic.com"},
	}
	for _, a := range [][2]string{
		{"claude-code", "api.anthropic.com"}, {"codex", "api.openai.com"}, {"gemini-cli", "generativelanguage.googleapis.com"}, {"opencode", "openrouter.ai"}, {"aider", "api.deepseek.com"},
	} {
		list = append(list, agent{name: "stand-in as " + a[0], host: a[1], script: standIn, config: fmt.Sprintf(`apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: standin}
extends: %s
network:
  dialFrom: host
  credentials:
  - {name: model, file: /etc/agentsafe/model-key, destination: "%s:443", present: header:x-api-key, baseURLEnv: MODEL_BASE_URL, basePath: /v1, placeholderEnv: MODEL_API_KEY}
`, a[0], a[1])})
	}
	return list
}

// read takes the profile and the command line from the agent's section of the documentation.
func (a *agent) read(t *testing.T) {
	t.Helper()
	if a.config != "" {
		return
	}
	data, err := os.ReadFile("../../docs/AGENTS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(data), "\n## "+a.name+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []string
	open := false
	for line := range strings.Lines(section) {
		code, ok := strings.CutPrefix(line, "    ")
		switch {
		case ok && open:
			blocks[len(blocks)-1] += code
		case ok:
			blocks = append(blocks, code)
		}
		open = ok
	}
	if len(blocks) != 2 || strings.Count(section, "    "+blocks[1]) != 1 {
		t.Fatalf("docs/AGENTS.md, %s: %d blocks, want a profile and a command line", a.name, len(blocks))
	}
	a.config, a.script = blocks[0], strings.TrimSpace(blocks[1])+" </dev/null"
}

// fetchAgents brings the real agents before the box, which has no network, is made. What can't be had is skipped.
func fetchAgents(ctx context.Context) {
	if os.Getenv("AGENTSAFE_TEST_LONG") == "" {
		return
	}
	for _, a := range agents() {
		if a.packages != nil {
			harness.NPM(ctx, a.entry(), a.packages...) //nolint:errcheck // the test tells
		}
	}
}

// entry is the agent's name in the cache.
func (a *agent) entry() string { return strings.ToLower(strings.ReplaceAll(a.name, " ", "-")) }

// installed returns the folder that has the agent.
func (a *agent) installed(t *testing.T) string {
	t.Helper()
	if os.Getenv("AGENTSAFE_TEST_LONG") == "" {
		t.Skip("probe AGENTSAFE_TEST_LONG: the agent itself is hundreds of megabytes")
	}
	need(t, "npm", "node")
	dir, err := harness.NPM(t.Context(), a.entry(), a.packages...)
	if err != nil {
		t.Skipf("probe npm: %v can't be installed: %v", a.packages, err)
	}
	return dir
}

// TestAgents: coding agents as their makers ship them, each under its profile in a container of Docker's. A model has
// them mend a program and try what they shouldn't; they never see the key that the model sees, the host's folder changes
// when a person promotes, and no other way leads out.
func TestAgents(t *testing.T) {
	trustWorld(t)
	storeLayers(t)
	e := startDocker(t)
	const key = "sk-key-of-the-house"
	for _, a := range agents() {
		t.Run(a.name, func(t *testing.T) {
			path := searchPath
			flags := []string{"--network", "none", "-e", "HOME=/tmp/home", "-w", "/job"}
			for _, m := range hostPrograms() {
				flags = append(flags, "-v", m)
			}
			if a.packages != nil {
				flags = append(flags, "-v", a.installed(t)+":/opt/agent:ro")
				for _, p := range append(slices.Clone(a.paths), ".bin") {
					path += ":/opt/agent/node_modules/" + p
				}
			}
			a.read(t)
			outside.name(a.host, public4b)
			m := outside.modelled(t, `sed -i 's/a - b/a + b/' calc.py && python3 -m unittest -q 2>&1 | tail -1; curl -sS -m 60 https://other.test/ 2>&1; `+
				`curl -sS -m 60 http://169.254.169.254/latest/ 2>&1; grep -c `+key+` /proc/[0-9]*/environ`)
			a.permit(t, key)
			folder := box.TempDir(t)
			const broken, whole = "def add(a, b): return a - b\n", "def add(a, b): return a + b\n"
			for name, content := range map[string]string{
				"calc.py": broken, "test_calc.py": "import calc, unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(calc.add(1, 2), 3)\n",
			} {
				if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			name := e.Up(t, harness.Peer{Name: "agentsafe"}, slices.Concat(flags, []string{"-e", path, "-v", folder + ":/job", image, "sleep", "1000"})...)
			r := box.Run(t, harness.Cmd{Args: e.Args("exec", name, "sh", "-c", "mkdir -p $HOME; "+a.script), Timeout: 6 * time.Minute})
			if r.Exit != 0 || !strings.Contains(r.Stdout, finished) {
				t.Errorf("want %q\n%v", finished, r)
			}
			a.judge(t, m, key)
			if got, err := os.ReadFile(filepath.Join(folder, "calc.py")); err != nil || string(got) != broken {
				t.Errorf("the host's file before the promotion: %q, %v", got, err)
			}
			id := e.Must(t, "inspect", "-f", "{{.Id}}", name)
			if diff := box.MustRun(t, ctl(t), "diff", id); !strings.Contains(diff, "+"+strings.TrimSpace(whole)) {
				t.Errorf("diff: %s", diff)
			}
			box.MustRun(t, ctl(t), "promote", id, "calc.py")
			if got, err := os.ReadFile(filepath.Join(folder, "calc.py")); err != nil || string(got) != whole {
				t.Errorf("the host's file after the promotion: %q, %v", got, err)
			}
		})
	}
}

// permit makes the agent's profile the host's default, with a key that only root can read.
func (a *agent) permit(t *testing.T, key string) {
	t.Helper()
	_, name, _ := strings.Cut(a.config, "metadata: {name: ")
	name, _, _ = strings.Cut(name, "}")
	file := filepath.Join(box.TempDir(t), name+".yaml")
	if err := os.WriteFile(file, []byte(a.config), 0o644); err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, ctl(t), "profile", "install", file)
	configure(t, fmt.Sprintf("default = %q", name))
	if err := os.WriteFile("/etc/agentsafe/model-key", []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// storeLayers binds a directory of the machine's own file system to where layers are: the box's is an overlay, which can't
// hold another one's upper directory.
func storeLayers(t *testing.T) {
	t.Helper()
	const store = "/var/lib/agentsafe/layers"
	if err := os.MkdirAll(store, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(box.TempDir(t), store, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(store, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// judge looks at what the model was told, and with which key.
func (a *agent) judge(t *testing.T, m *model, key string) {
	t.Helper()
	outcomes, keys := m.said()
	if len(outcomes) != 1 {
		t.Fatalf("the model heard of %d commands: %q", len(outcomes), outcomes)
	}
	for _, want := range []string{"OK", "other.test", "169.254.169.254"} {
		if !strings.Contains(outcomes[0], want) {
			t.Errorf("the command's output does not have %q: %s", want, outcomes[0])
		}
	}
	if strings.Contains(outcomes[0], "world:") || strings.Contains(outcomes[0], key) {
		t.Errorf("something was not refused: %s", outcomes[0])
	}
	for _, k := range keys {
		if k != a.host+" "+a.header+key {
			t.Errorf("the model was shown %q", k)
		}
	}
	if len(keys) < 2 {
		t.Errorf("the model was asked %d times", len(keys))
	}
}

// modelled lets the world's hosts be models until the test ends.
func (w *world) modelled(t *testing.T, command string) *model {
	t.Helper()
	m := &model{command: command}
	set := func(m *model) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.model = m
	}
	set(m)
	t.Cleanup(func() { set(nil) })
	return m
}
