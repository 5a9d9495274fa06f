package network

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// trustWorld makes the world's authority one of the host's, which the gateway's own TLS trusts.
func trustWorld(t *testing.T) {
	t.Helper()
	const bundle = "/etc/ssl/certs/ca-certificates.crt"
	before, err := os.ReadFile(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bundle, append(slices.Clip(before), outside.caPEM...), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(bundle, before, 0o644); err != nil {
			t.Error(err)
		}
	})
}

// TestCredentialClients: programs that know nothing of the gateway work with a secret that they don't have, under Docker:
// a model's client, whose answer comes in pieces, git with and without a helper of its own, npm and pip.
func TestCredentialClients(t *testing.T) {
	need(t, "git", "npm", "pip", "node")
	outside.gitRepository(t)
	trustWorld(t)
	const secret = "robot:" + worldSecret
	key := filepath.Join(box.TempDir(t), "key")
	if err := os.WriteFile(key, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := ""
	for _, c := range []string{
		`name: model, destination: "api.test:443", present: bearer, baseURLEnv: MODEL_BASE_URL, basePath: /v1, placeholderEnv: MODEL_API_KEY`,
		`name: git, destination: private.example.com, present: basic, client: git, placeholderEnv: GIT_TOKEN`,
		`name: npm, destination: private.example.com, present: basic, client: npm, basePath: /npm`,
		`name: pip, destination: private.example.com, present: basic, client: pip`,
	} {
		list += fmt.Sprintf("  - {%s, file: %s}\n", c, key)
	}
	administer(t, profileFile(t, "  mode: gateway\n  dialFrom: host\n  credentials:\n"+list))
	e := startDocker(t)
	flags := []string{"--network", "none", "-e", searchPath, "-e", "HOME=/tmp", "-w", "/tmp"}
	for _, m := range hostPrograms() {
		flags = append(flags, "-v", m)
	}
	name := e.Up(t, harness.Peer{Name: "agentsafe"}, append(flags, image, "sleep", "1000")...)
	for _, tc := range []struct{ name, script, want, seen string }{
		{
			"model", `node -e 'const e = process.env; fetch(e.MODEL_BASE_URL + "/messages", {method: "POST", headers: {authorization: "Bearer " + e.MODEL_API_KEY}, body: "{}"})` +
				`.then(async r => { const d = new TextDecoder(); for await (const c of r.body) process.stdout.write(d.decode(c)) })'`,
			"data: one\n\ndata: two\n\ndata: three\n\n", "POST api.test/v1/messages Bearer " + secret,
		},
		{"git", "git clone -q https://private.example.com/repo.git one && cat one/README", "cloned\n", ""},
		{"git, redirected", "git clone -q https://private.example.com/moved/repo.git two && cat two/README", "cloned\n", ""},
		{
			"git with a helper", "git -c credential.helper='!h() { echo username=robot; echo password=$GIT_TOKEN; }; h' -c credential.useHttpPath=true clone -q https://private.example.com/repo.git three && cat three/README",
			"cloned\n", "",
		},
		{"npm", `npm install --no-audit --no-fund --no-update-notifier --loglevel error greeting >&2 && node -e 'console.log(require("greeting"))'`, "installed by npm over TLS\n", ""},
		{
			"pip", "pip install --no-cache-dir --disable-pip-version-check --root-user-action ignore --target lib greeting >&2 && PYTHONPATH=lib python3 -c 'import greeting; print(greeting.WORD)'",
			"installed over TLS\n", "",
		},
		{"what else there is", "cat /proc/[0-9]*/environ; env; git config --list; npm config list; grep -rs robot: /tmp /run /etc | head -3; true", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := e.Do(t, "exec", name, "sh", "-c", tc.script)
			if tc.want != "" && r.Stdout != tc.want || r.Exit != 0 {
				t.Errorf("want %q\n%v", tc.want, r)
			}
			if strings.Contains(r.Stdout+r.Stderr, worldSecret) {
				t.Errorf("the secret is inside:\n%v", r)
			}
			if tc.seen != "" && !slices.Contains(outside.requests(), tc.seen) {
				t.Errorf("the destination has not seen %s: %q", tc.seen, outside.requests())
			}
		})
	}
	// No other way leads to the same host: no rule allows it.
	if r := e.Do(t, "exec", name, "curl", "-sS", "-k", "https://private.example.com/"); r.Exit == 0 {
		t.Errorf("the destination is open beside the credential:\n%v", r)
	}
}
