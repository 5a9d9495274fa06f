package network

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
	"github.com/agentsafe/agentsafe/netns/egress"
)

// below returns a name under the first wildcard of the rule set pypi: one that nobody serves.
func below(t testing.TB, label string) string {
	t.Helper()
	const set = "pypi"
	rules, err := egress.RuleSet(set)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if suffix, ok := strings.CutPrefix(r, "*"); ok {
			suffix, _, _ = strings.Cut(suffix, ":")
			return label + suffix
		}
	}
	t.Fatalf("the rule set %s has no wildcard", set)
	return ""
}

// route is one way to a container under the profile build. It runs a script in the folder, which is mounted at /work.
type route struct {
	name string
	// ipv4 says that the engine's network has no IPv6.
	ipv4 bool
	run  func(t *testing.T, folder, script string) harness.Result
}

// TestProfileBuild takes every way to a container, with the built-in profile as it is and an unmodified client: the
// package of an allowed name is installed over TLS, and what must not be reached is refused at once and logged.
func TestProfileBuild(t *testing.T) {
	registry := below(t, "packages")
	outside.name(registry, public4b)
	outside.name(below(t, "rebound"), "10.9.9.9")
	outside.name(below(t, "metadata"), "169.254.169.254")
	outside.name(below(t, "six"), public6)
	configure(t, "[network]", `dialFrom = "host"`)
	for _, engine := range []struct {
		name   string
		routes func(t *testing.T, profile string) []route
	}{{"docker", dockerRoutes}, {"current docker", currentDockerRoutes}, {"podman", podmanRoutes}, {"ctr", ctrRoutes}, {"agentsafectl", ctlRoutes}} {
		t.Run(engine.name, func(t *testing.T) {
			for _, r := range engine.routes(t, "build") {
				t.Run(r.name, func(t *testing.T) { installAndRefuse(t, registry, r) })
			}
		})
	}
}

func installAndRefuse(t *testing.T, registry string, r route) {
	t.Helper()
	folder := box.TempDir(t)
	if err := outside.folder(folder); err != nil {
		t.Fatal(err)
	}
	got := r.run(t, folder, "pip install --no-cache-dir --disable-pip-version-check --root-user-action ignore --index-url https://"+registry+
		"/simple --cert ca.pem --target /tmp/lib-$$ greeting >&2 && PYTHONPATH=/tmp/lib-$$ python3 -c 'import greeting; print(greeting.WORD)'")
	if got.Exit != 0 || got.Stdout != "installed over TLS\n" {
		t.Fatalf("install:\n%v", got)
	}
	six := `world`
	if r.ipv4 {
		six = `(?i)access.denied`
	}
	refusedEverywhere(t, registry, six, func(folder, script string) harness.Result { return r.run(t, folder, script) })
}

// refusedEverywhere tries what the built-in profiles must refuse, whatever the engine.
func refusedEverywhere(t *testing.T, registry, six string, run func(folder, script string) harness.Result) {
	t.Helper()
	const head = "GET / HTTP/1.1\r\nHost: "
	rows := []struct {
		attempt
		want, code string
	}{
		{attempt{Kind: "lookup", Name: "other.test"}, `not known|No address|resolution`, "no-rule"},
		{attempt{Kind: "dns", Name: "c2VjcmV0.other.test", Server: "9.9.9.9"}, `rcode 3`, "no-rule"},
		{attempt{Kind: "dns", Name: "a\x00." + registry}, `rcode 3`, "bad-name"},
		{attempt{Kind: "dns", Name: "0x7f000001"}, `rcode 3`, "bad-name"},
		{attempt{Kind: "lookup", Name: below(t, "rebound")}, `not known|No address|resolution`, "bad-address"},
		{attempt{Kind: "lookup", Name: below(t, "metadata")}, `not known|No address|resolution`, "bad-address"},
		{attempt{Kind: "tls", Host: public4b, SNI: registry}, `(?i)access.denied`, "no-name"},
		{attempt{Kind: "tls", Host: registry, SNI: "other.test"}, `(?i)access.denied`, "name-mismatch"},
		{attempt{Kind: "tls", Host: registry}, `(?i)access.denied`, "hidden-name"},
		{attempt{Kind: "tls", Host: registry, SNI: registry}, `200 OK`, ""},
		{attempt{Kind: "tls", Host: below(t, "six"), SNI: below(t, "six")}, six, ""},
		{attempt{Kind: "tcp", Host: registry, Port: 443, Send: head + "other.test\r\n\r\n"}, `403 Forbidden`, "name-mismatch"},
		{attempt{Kind: "tcp", Host: registry, Port: 22, Send: "SSH-2.0-x\r\n"}, `error|^$`, "no-rule"},
		{attempt{Kind: "tcp", Host: "169.254.169.254", Port: 80, Send: head + "x\r\n\r\n"}, `403 Forbidden`, "no-name"},
		{attempt{Kind: "tcp", Host: "100.100.100.200", Port: 80, Send: head + "x\r\n\r\n"}, `403 Forbidden`, "no-name"},
		{attempt{Kind: "tcp", Host: "10.9.9.9", Port: 80, Send: head + "x\r\n\r\n"}, `403 Forbidden`, "no-name"},
		{attempt{Kind: "tcp", Host: public4, Port: 5432}, `error Connection`, "no-name"},
		{attempt{Kind: "udp", Host: public4, Port: 443}, `error (Permission|Connection)`, ""}, // QUIC
		{attempt{Kind: "tcp", Host: "proxy.agentsafe.internal", Port: 3128, Send: "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n"}, `403 Forbidden`, "no-rule"},
	}
	list := make([]attempt, len(rows))
	for i := range rows {
		list[i] = rows[i].attempt
	}
	results, refused := tryIn(t, run, list)
	for i, row := range rows {
		if !regexp.MustCompile(row.want).MatchString(results[i].text()) {
			t.Errorf("%+v: got %q, want %s", row.attempt, results[i].text(), row.want)
		}
		if results[i].Seconds > 4 {
			t.Errorf("%+v: took %.1f s", row.attempt, results[i].Seconds)
		}
		if row.code != "" && !slices.ContainsFunc(refused, func(r refusal) bool { return r.Code == row.code }) {
			t.Errorf("%+v: the gateway lists no refusal %q", row.attempt, row.code)
		}
	}
}

// hostPrograms are the host's own, which tasks of every engine get beside busybox: the clients as Debian has them.
func hostPrograms() []string {
	out := []string{"/usr:/usr:ro", "/etc/alternatives:/etc/alternatives:ro", "/etc/ssl/certs:/etc/ssl/certs:ro"}
	for _, dir := range []string{"/lib", "/lib64"} { // links to what is below /usr
		if resolved, err := filepath.EvalSymlinks(dir); err == nil {
			out = append(out, resolved+":"+dir+":ro")
		}
	}
	return out
}

const searchPath = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// dockerRoutes: Docker 20.10 can't pass annotations, so the profile comes by the runtime's name, or by a variable, which
// can only tighten.
func dockerRoutes(t *testing.T, profile string) []route {
	t.Helper()
	e := startDocker(t)
	common := []string{"run", "--rm", "-w", "/work", "-e", searchPath}
	for _, m := range hostPrograms() {
		common = append(common, "-v", m)
	}
	way := func(name string, flags ...string) route {
		return route{name, name == "bridge", func(t *testing.T, folder, script string) harness.Result {
			t.Helper()
			return e.Do(t, slices.Concat(common, []string{"-v", folder + ":/work:ro"}, flags, []string{image, "sh", "-c", script})...)
		}}
	}
	return []route{
		way("--network none, by variable", "--runtime", "agentsafe", "--network", "none", "-e", "AGENTSAFE_PROFILE="+profile),
		way("--network none, by runtime", "--runtime", "agentsafe-"+profile, "--network", "none"),
		way("bridge", "--runtime", "agentsafe-"+profile),
	}
}

func podmanRoutes(t *testing.T, profile string) []route {
	t.Helper()
	e := &harness.Podman{Box: box}
	_, peer := harness.Peers(t)
	busybox, err := harness.Busybox()
	if err == nil {
		err = e.Load(busybox.Archive)
	}
	if err != nil {
		t.Fatal(err)
	}
	const none = "--network none, by annotation"
	common := []string{
		"run", "--rm", "--cgroup-parent", box.CgroupParent(), "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "-w", "/work", "-e", searchPath,
		"--annotation", "agentsafe.dev/profile=" + profile,
	}
	for _, m := range hostPrograms() {
		common = append(common, "-v", m)
	}
	way := func(name string, flags ...string) route {
		return route{name, name != none, func(t *testing.T, folder, script string) harness.Result {
			t.Helper()
			return e.Do(t, peer, slices.Concat(common, []string{"-v", folder + ":/work:ro"}, flags, []string{image, "sh", "-c", script})...)
		}}
	}
	return []route{way(none, "--network", "none"), way("bridge, by annotation")}
}

// ctrRoutes are containerd's own client, without a network and with CNI's.
func ctrRoutes(t *testing.T, profile string) []route {
	t.Helper()
	_, peer := harness.Peers(t)
	e, err := box.StartContainerd()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	busybox, err := harness.Busybox()
	if err == nil {
		err = e.Import(busybox.Archive)
	}
	const config = `{"cniVersion": "1.0.0", "name": "agentsafe-test", "plugins": [{"type": "bridge", "bridge": "br-cni", "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.87.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}, {"type": "firewall"}]}`
	for _, err := range []error{
		err, os.MkdirAll("/opt/cni", 0o755), os.Symlink("/usr/lib/cni", "/opt/cni/bin"), os.MkdirAll("/etc/cni/net.d", 0o755),
		os.WriteFile("/etc/cni/net.d/10-test.conflist", []byte(config), 0o644),
	} {
		if err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		box.MustRun(t, "sh", "-c", "ip link del br-cni 2>/dev/null; rm -rf /var/lib/cni /etc/cni/net.d/10-test.conflist")
	})
	common := []string{"--rm", "--cwd", "/work", "--env", searchPath, "--annotation", "agentsafe.dev/profile=" + profile}
	mount := func(text string) []string {
		source, rest, _ := strings.Cut(text, ":")
		target, _, _ := strings.Cut(rest, ":")
		return []string{"--mount", "type=bind,src=" + source + ",dst=" + target + ",options=rbind:ro"}
	}
	for _, m := range hostPrograms() {
		common = append(common, mount(m)...)
	}
	way := func(name string, flags ...string) route {
		return route{name, name == "--cni", func(t *testing.T, folder, script string) harness.Result {
			t.Helper()
			flags := slices.Concat(common, mount(folder+":/work:ro"), flags)
			return box.Run(t, harness.Cmd{Args: e.RunArgs(peer, flags, "docker.io/library/"+image, box.ID(), "sh", "-c", script)})
		}}
	}
	return []route{way("without a network"), way("--cni", "--cni")}
}

// ctlRoutes have no engine: the host's own programs.
func ctlRoutes(t *testing.T, profile string) []route {
	t.Helper()
	return []route{{"run", false, func(t *testing.T, folder, script string) harness.Result {
		t.Helper()
		return box.Run(t, harness.Cmd{Args: []string{ctl(t), "--data-dir", filepath.Join(box.Dir, "data"), "run", "--quiet", "--profile", profile, "--workspace", folder, "--", "sh", "-c", script}})
	}}}
}

// Without the administrator's word there is no way out through the host's network, and the error says which one is wanted.
func TestAttack_HostNetworkUnsaid(t *testing.T) {
	_, peer := harness.Peers(t)
	d := box.Bare(t, peer)
	d.Global = []string{"--profile", "build"}
	b := d.Create(t, harness.Sh("true"))
	r := d.Do(t, "start", b.ID)
	if want := "`dialFrom = \"host\"` below `[network]` in /etc/agentsafe/config.toml, then `agentsafectl config apply`"; r.Exit == 0 || !strings.Contains(r.Stderr, want) {
		t.Errorf("want %s\n%v", want, r)
	}
	if _, err := os.Stat(filepath.Join(d.Root, b.ID, "network.json")); err == nil {
		t.Error("a gateway was started")
	}
}
