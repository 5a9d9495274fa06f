package network

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// inspection makes an authority as docs/NETWORK.md has it and returns the lines of the configuration that turn inspection
// on, and the directory of its files.
func inspection(t *testing.T) (lines []string, dir string) {
	t.Helper()
	dir = box.TempDir(t)
	box.MustRun(t, "sh", "-ec", "umask 077; cd "+dir+`; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "/CN=agentsafe inspection" \
 -addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign -keyout authority.key -out authority.pem 2>/dev/null`)
	return []string{"[network]", `inspectCertificate = "` + dir + `/authority.pem"`, `inspectKey = "` + dir + `/authority.key"`}, dir
}

// inspectedRules judge what is in TLS to some names; dual.test is relayed.
func inspectedRules() string {
	return rules("GET,HEAD https://example.com/x", "http://example.com", "https://git.test/repo.git", "GET https://packages.test/npm", "GET https://packages.test/simple",
		"GET https://packages.test/files", "dual.test", "https://private.example.com/repo.git", "POST https://api.test/v1")
}

// TestInspection: unmodified clients are judged by what they ask for in TLS, and trust the gateway for it, while the TLS of
// other names stays from end to end.
func TestInspection(t *testing.T) {
	need(t, "openssl", "git", "npm", "pip", "node", "wget")
	outside.gitRepository(t)
	trustWorld(t)
	const secret = "robot:" + worldSecret
	key := filepath.Join(box.TempDir(t), "key")
	if err := os.WriteFile(key, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lines, dir := inspection(t)
	administer(t, profileFile(t, inspectedRules()+fmt.Sprintf("  credentials:\n"+
		"  - {name: model, file: %[1]s, destination: api.test, present: bearer, placeholderEnv: MODEL_API_KEY, inspect: true}\n"+
		"  - {name: git, file: %[1]s, destination: private.example.com, present: basic, placeholderEnv: GIT_TOKEN, inspect: true}\n", key)), lines...)
	e := startDocker(t)
	flags := []string{"--network", "none", "-e", searchPath, "-e", "HOME=/tmp", "-w", "/tmp"}
	for _, m := range hostPrograms() {
		flags = append(flags, "-v", m)
	}
	name := e.Up(t, harness.Peer{Name: "agentsafe"}, append(flags, image, "sleep", "1000")...)
	const issuer = " </dev/null 2>&1 | openssl x509 -noout -issuer"
	for _, tc := range []struct{ name, script, want, seen string }{
		{"curl", "curl -sS --http1.1 https://example.com/x?a=b", "^world: example.com /x\n$", "GET example.com/x?a=b "},
		{"curl by HTTP/2", "curl -sS --http2 -w '%{http_version}' https://example.com/x/y", "^world: example.com /x/y\n2$", ""},
		{"who it is", "openssl s_client -connect example.com:443 -servername example.com" + issuer, "agentsafe inspection", ""},
		{"who others are", "openssl s_client -connect dual.test:443 -servername dual.test" + issuer, "test authority", ""},
		{"openssl", "openssl s_client -connect example.com:443 -servername example.com -verify_return_error </dev/null", `Verify return code: 0`, ""},
		{"from end to end", "curl -sS https://dual.test/secret", "^world: dual.test /secret\n$", ""},
		{"wget", "wget -q --ca-certificate=$SSL_CERT_FILE -O- https://example.com/x", "^world: example.com /x\n$", ""},
		{"git", "git clone -q https://git.test/repo.git one && cat one/README", "^cloned\n$", ""},
		{"requests", `python3 -c 'from pip._vendor import requests; print(requests.get("https://example.com/x").text)'`, "^world: example.com /x\n", ""},
		{"urllib", `python3 -c 'import urllib.request as u; print(u.urlopen("https://example.com/x").read().decode())'`, "^world: example.com /x\n", ""},
		{"node", `node -e 'fetch("https://example.com/x").then(r => r.text()).then(console.log)'`, "^world: example.com /x\n", ""},
		{"npm", "npm install --no-audit --no-fund --no-update-notifier --fetch-retries 0 --loglevel error --registry https://packages.test/npm/ greeting >&2 && node -e 'console.log(require(\"greeting\"))'", "^installed by npm over TLS\n", ""},
		{
			"pip", "pip install --no-cache-dir --disable-pip-version-check --root-user-action ignore --index-url https://packages.test/simple --target lib greeting >&2 && PYTHONPATH=lib python3 -c 'import greeting; print(greeting.WORD)'",
			"^installed over TLS\n", "",
		},
		{"another path", "curl -sS https://example.com/secret", `^\{"code":"no-rule".*does not cover this method or path`, ""},
		{"another method", "curl -sS -d x https://example.com/x; curl -sS -X DELETE --http1.1 https://example.com/x", `(?s)"code":"no-rule".*"code":"no-rule"`, ""},
		{
			"paths in disguise", `for v in 1.1 2; do for p in /x/../secret /x/%2e%2e/secret //x '/x/..;/secret' /x%2f..%2fsecret '/x/%252e%252e/secret'; do ` +
				`curl -sS --http$v --path-as-is -o answer -w '%{http_code} ' "https://example.com$p"; done; done`, "^(403 ){12}$", "",
		},
		{"another host", "for h in other.test dual.test example.com:8443; do curl -sS --http1.1 -H \"Host: $h\" https://example.com/x; curl -sS --http2 -H \"Host: $h\" https://example.com/x; done", `^(.*"code":"name-mismatch".*\n){6}$`, ""},
		{"a name that is not allowed", "curl -sS --connect-to other.test:443:example.com:443 https://other.test/x 2>&1", "(?i)alert|denied", ""},
		{
			"a model's client", `node -e 'fetch("https://api.test/v1/messages", {method: "POST", headers: {authorization: "Bearer " + process.env.MODEL_API_KEY}, body: "{}"})` +
				`.then(async r => { const d = new TextDecoder(); for await (const c of r.body) process.stdout.write(d.decode(c)) })'`,
			"^data: one\n\ndata: two\n\ndata: three\n\n$", "POST api.test/v1/messages Bearer " + secret,
		},
		{
			"git with a credential", "git -c credential.helper='!h() { echo username=x; echo password=$GIT_TOKEN; }; h' clone -q https://private.example.com/repo.git two && cat two/README",
			"^cloned\n$", "",
		},
		{
			"the placeholder elsewhere", `for u in https://example.com/x http://example.com/; do curl -sS -H "X: $MODEL_API_KEY" $u; curl -sS "$u?k=$MODEL_API_KEY"; curl -sS -u "x:$MODEL_API_KEY" $u; done`,
			`^(.*the placeholder of the credential model was sent to another host.*\n){6}$`, "",
		},
		{"what else there is", `cat /proc/[0-9]*/environ; env; grep -rsE "robot:|PRIVATE KEY" /tmp /run /etc /dev/agentsafe | head -3; ls -l /dev/agentsafe`, `(?s)-r--r--r-- .* authority.pem\n.*-r--r--r-- .* trusted.pem\n$`, ""},
		{"the authority is nobody's to change", "rm -f /dev/agentsafe/authority.pem; echo x >/dev/agentsafe/trusted.pem; test -s /dev/agentsafe/authority.pem && grep -c BEGIN /dev/agentsafe/authority.pem", "^1\n$", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := e.Do(t, "exec", name, "timeout", "120", "sh", "-c", tc.script)
			if !regexp.MustCompile(tc.want).MatchString(r.Stdout) {
				t.Errorf("want %s\n%v", tc.want, r)
			}
			if strings.Contains(r.Stdout+r.Stderr, worldSecret) || strings.Contains(r.Stdout, "PRIVATE KEY") {
				t.Errorf("a secret is inside:\n%v", r)
			}
			if tc.seen != "" && !slices.Contains(outside.requests(), tc.seen) {
				t.Errorf("the destination has not seen %s: %q", tc.seen, outside.requests())
			}
		})
	}
	for _, r := range outside.requests() {
		if strings.Contains(r, "example.com/secret") || strings.Contains(r, "agentsafe-placeholder") {
			t.Errorf("it has left: %s", r)
		}
	}
	// A container without its authority is not made.
	if err := os.Chmod(filepath.Join(dir, "authority.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := e.Do(t, slices.Concat([]string{"run", "--rm", "--runtime", "agentsafe"}, flags, []string{image, "true"})...); r.Exit == 0 || !strings.Contains(r.Stderr, "nobody else can read or write") {
		t.Errorf("a key that others can read: %v", r)
	}
}

// TestInspection_Routes: the same under the other ways to a container.
func TestInspection_Routes(t *testing.T) {
	trustWorld(t)
	lines, _ := inspection(t)
	box.MustRun(t, ctl(t), "profile", "install", profileFile(t, inspectedRules()))
	configure(t, append([]string{`selectable = ["net"]`}, lines...)...)
	const script = `curl -sS https://example.com/x && curl -sS https://example.com/secret && python3 -c 'import urllib.request as u; print(u.urlopen("https://example.com/x").read().decode())'`
	const want = `^world: example.com /x\n\{"code":"no-rule".*\nworld: example.com /x\n`
	for _, engine := range []struct {
		name   string
		routes func(t *testing.T, profile string) []route
	}{{"current docker", currentDockerRoutes}, {"podman", podmanRoutes}, {"ctr", ctrRoutes}, {"agentsafectl", ctlRoutes}} {
		t.Run(engine.name, func(t *testing.T) {
			for _, r := range engine.routes(t, "net") {
				t.Run(r.name, func(t *testing.T) {
					if got := r.run(t, box.TempDir(t), script); !regexp.MustCompile(want).MatchString(got.Stdout) {
						t.Errorf("want %s\n%v", want, got)
					}
				})
			}
		})
	}
}

// TestAttack_InspectionUnsaid: no profile, annotation or variable turns inspection on, and the error says what does.
func TestAttack_InspectionUnsaid(t *testing.T) {
	const want = "below `[network]` in /etc/agentsafe/config.toml, then `agentsafectl config apply`"
	for _, network := range []string{
		rules("GET https://example.com"),
		rules("example.com") + "  credentials:\n  - {name: model, file: /etc/key, destination: example.com, present: bearer, placeholderEnv: KEY, inspect: true}\n",
	} {
		administer(t, profileFile(t, network))
		r := box.Run(t, harness.Cmd{Args: []string{ctl(t), "run", "--quiet", "--profile", "net", "--workspace", box.TempDir(t), "--", "true"}})
		if r.Exit == 0 || !strings.Contains(r.Stderr, want) || !strings.Contains(r.Stderr, "inspectKey") {
			t.Errorf("%v", r)
		}
	}
	// A configuration that can't work is not applied.
	lines, dir := inspection(t)
	for name, change := range map[string]string{
		"can read or write": "chmod 640 authority.key", "does not match": "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out authority.key; chmod 600 authority.key",
		"not that of an authority": `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -addext basicConstraints=critical,CA:FALSE -keyout authority.key -out authority.pem 2>/dev/null; chmod 600 authority.key`,
		"no such file":             "rm authority.pem",
	} {
		box.MustRun(t, "sh", "-ec", "cd "+dir+"; "+change)
		if err := os.WriteFile("/etc/agentsafe/config.toml", []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if r := box.Run(t, harness.Cmd{Args: []string{ctl(t), "config", "apply"}}); r.Exit == 0 || !strings.Contains(r.Stderr, name) {
			t.Errorf("want %q: %v", name, r)
		}
		lines, dir = inspection(t)
	}
}

// withHostPrograms gives a container the host's programs.
func withHostPrograms(s *specs.Spec) {
	for _, m := range hostPrograms() {
		parts := strings.Split(m, ":")
		s.Mounts = append(s.Mounts, specs.Mount{Source: parts[0], Destination: parts[1], Type: "bind", Options: []string{"rbind", "ro"}})
	}
	s.Process.Args, s.Process.Env = []string{"sleep", "1000"}, append(s.Process.Env, searchPath)
}

// The log tells an auditor of each inspected request, without what was secret in it, and rules for requests in TLS change
// while the container runs as others do.
func TestInspection_Log(t *testing.T) {
	trustWorld(t)
	lines, _ := inspection(t)
	administer(t, profileFile(t, rules("GET https://example.com/x")), append(lines, `allowWhileRunning = ["PUT https://example.com/y"]`)...)
	_, peer := harness.Peers(t)
	d := box.Bare(t, peer)
	b := d.Up(t, withHostPrograms)
	sh := func(script string) harness.Result { return d.Do(t, "exec", b.ID, "sh", "-c", script) }
	if r := sh("curl -sS https://example.com/x?token=in-the-query; curl -sS -X PUT https://example.com/y"); !regexp.MustCompile(`^world: example.com /x\n\{"code":"no-rule"`).MatchString(r.Stdout) {
		t.Fatalf("%v", r)
	}
	for rule, want := range map[string]bool{"PUT https://example.com/y": true, "DELETE https://example.com/y": false, "https://example.com/y": false} {
		r := box.Run(t, harness.Cmd{Args: []string{ctl(t), "--root", d.Root, "network", "allow", b.ID, rule}})
		if (r.Exit == 0) != want {
			t.Errorf("%v", r)
		}
	}
	if r := sh("curl -sS -X PUT https://example.com/y; curl -sS -X PUT https://example.com/x"); !regexp.MustCompile(`^world: example.com /y\n\{"code":"no-rule"`).MatchString(r.Stdout) {
		t.Errorf("%v", r)
	}
	text, err := os.ReadFile(filepath.Join(d.Root, b.ID, "network.jsonl"))
	for _, want := range []string{
		`"event":"connect","decision":"allow","name":"example.com".*"inspected":true`,
		`"event":"request","decision":"allow","name":"example.com".*"port":443,"protocol":"tls","rule":"GET https://example.com/x","method":"GET","path":"/x\?...","inspected":true`,
		`"event":"request","decision":"refuse","name":"example.com".*"code":"no-rule".*"method":"PUT","path":"/y","inspected":true`,
	} {
		if err != nil || !regexp.MustCompile(want).Match(text) {
			t.Errorf("no line %s in\n%s (%v)", want, text, err)
		}
	}
	if strings.Contains(string(text), "in-the-query") {
		t.Errorf("a query is in the log:\n%s", text)
	}
	for _, name := range []string{"network.jsonl", "state.json", "detail.json"} {
		if data, err := os.ReadFile(filepath.Join(d.Root, b.ID, name)); err != nil || strings.Contains(string(data), "PRIVATE KEY") {
			t.Errorf("%s holds the key, or can't be read: %v", name, err)
		}
	}
}

// TestInspection_JVM: Java finds its trust store by a variable.
func TestInspection_JVM(t *testing.T) {
	if os.Getenv("AGENTSAFE_TEST_LONG") == "" {
		t.Skip("probe AGENTSAFE_TEST_LONG: not set, and the client takes its time")
	}
	need(t, "java")
	trustWorld(t)
	lines, _ := inspection(t)
	box.MustRun(t, ctl(t), "profile", "install", profileFile(t, inspectedRules()))
	configure(t, append([]string{`selectable = ["net"]`}, lines...)...)
	folder := box.TempDir(t)
	if err := outside.folder(folder); err != nil {
		t.Fatal(err)
	}
	for _, r := range ctlRoutes(t, "net") {
		const script = "java Get.java https://example.com/x && java Get.java https://dual.test/y; java Get.java https://example.com/secret"
		const want = `(?s)^world: example.com /x\n.*world: dual.test /y\n.*does not cover this method or path`
		if got := r.run(t, folder, script); !regexp.MustCompile(want).MatchString(got.Stdout) || !strings.Contains(got.Stderr, "trusted.jks") {
			t.Errorf("%s: want %s\n%v", r.name, want, got)
		}
	}
}

// TestInspection_Chromium: the browser trusts the gateway once the user's store has the authority, by the words of
// docs/NETWORK.md, and no sooner.
func TestInspection_Chromium(t *testing.T) {
	if os.Getenv("AGENTSAFE_TEST_LONG") == "" {
		t.Skip("probe AGENTSAFE_TEST_LONG: not set, and the client takes its time")
	}
	need(t, "chromium", "certutil")
	page, err := os.ReadFile("../../docs/NETWORK.md")
	if err != nil {
		t.Fatal(err)
	}
	trust := regexp.MustCompile("`(certutil [^`]*)`").FindAllStringSubmatch(string(page), -1)
	if len(trust) != 2 {
		t.Fatalf("the page has %d commands of certutil, want two", len(trust))
	}
	trustWorld(t)
	lines, _ := inspection(t)
	box.MustRun(t, ctl(t), "profile", "install", profileFile(t, inspectedRules()))
	configure(t, append([]string{`selectable = ["net"]`}, lines...)...)
	browser := strings.ReplaceAll(browse, "--ignore-certificate-errors ", "")
	script := "export HOME=$PWD; " + browser + "https://example.com/x | grep world: && echo too soon; mkdir -p $HOME/.pki/nssdb; " + trust[0][1] + " && " + trust[1][1] + " && " +
		browser + "https://example.com/x; " + browser + "https://example.com/secret"
	for _, r := range ctlRoutes(t, "net") {
		const want = `(?s)^<html>.*world: example.com /x\n.*does not cover this method or path`
		if got := r.run(t, box.TempDir(t), script); !regexp.MustCompile(want).MatchString(got.Stdout) || strings.Contains(got.Stdout, "too soon") {
			t.Errorf("%s: want %s\n%v", r.name, want, got)
		}
	}
}
