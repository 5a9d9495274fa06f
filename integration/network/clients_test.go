package network

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// need skips a test whose client this machine has not: integration/deps.sh installs the small ones.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("probe %s: %v", p, err)
		}
	}
}

// getJava is a program for the JVM's own client.
const getJava = `import java.net.http.*; import java.net.URI;
public class Get { public static void main(String[] a) throws Exception {
  System.out.print(HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofString()).body()); } }`

// npm installs from the registry that follows, and prints no advertisements.
const npm = "HOME=$PWD npm install --no-audit --no-fund --no-update-notifier --fetch-retries 0 --cafile ca.pem --loglevel error --registry "

// browse prints what a page looks like after its scripts have run.
const browse = "HOME=$PWD timeout 120 /usr/lib/chromium/chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --ignore-certificate-errors --enable-quic --virtual-time-budget=20000 --dump-dom "

// TestClients: unmodified programs reach an allowed name, and learn at once that another one is not.
func TestClients(t *testing.T) {
	for _, tc := range []struct {
		name, program, allowed, want, refused string
		long                                  bool
	}{
		{"curl", "curl", "curl -sS --cacert ca.pem https://example.com/x", "^world: example.com /x", "curl -sS --cacert ca.pem https://other.test/", false},
		{"curl by HTTP/2", "curl", "curl -sS --cacert ca.pem --http2 https://example.com/x", "^world: example.com /x", "curl -sS http://" + public4 + "/ -f", false},
		{"wget", "wget", "wget -q --ca-certificate=ca.pem -O- https://example.com/x", "^world: example.com /x", "wget -q -T 5 -t 1 -O- https://other.test/", false},
		{
			"openssl", "openssl", "openssl s_client -connect example.com:443 -servername example.com -CAfile ca.pem -verify_return_error </dev/null", "Verify return code: 0",
			"openssl s_client -connect example.com:443 -servername other.test </dev/null", false,
		},
		{"openssl without a name", "openssl", "openssl s_client -connect example.com:443 -servername example.com </dev/null", "CONNECTED", "openssl s_client -connect example.com:443 -noservername </dev/null", false},
		{"dig", "dig", "dig +short example.com", `^198\.1[89]\.`, "dig +noall +comments other.test | grep -q NOERROR", false},
		{"dig by TCP to a server of its own", "dig", "dig +tcp +short @8.8.8.8 example.com", `^198\.1[89]\.`, "dig +noall +comments @8.8.8.8 other.test TXT | grep -q NOERROR", false},
		{
			"python requests", "python3", `python3 -c 'from pip._vendor import requests; print(requests.get("https://example.com/x", verify="ca.pem").text)'`, "^world: example.com /x",
			`python3 -c 'from pip._vendor import requests; requests.get("https://other.test/")'`, false,
		},
		{
			"node", "node", `NODE_EXTRA_CA_CERTS=ca.pem node -e 'fetch("https://example.com/x").then(r=>r.text()).then(console.log)'`, "^world: example.com /x",
			`node -e 'fetch("https://other.test/")'`, false,
		},
		{"nc", "nc", "nc -w 3 git.test 5432 </dev/null", "^hello from a database", "nc -w 3 " + public4 + " 5432 </dev/null | grep .", false},
		{"Go's net/http, after QUIC", "sh", "AGENTSAFE_TEST_CLIENT=https://example.com/x ./client", "^refused: .*\nworld: example.com /x", "AGENTSAFE_TEST_CLIENT=https://other.test/ ./client", false},
		{"npm", "npm", npm + "https://packages.test/npm/ greeting && node -e 'console.log(require(\"greeting\"))'", "installed by npm over TLS", npm + "https://other.test/npm/ greeting", false},
		{
			"JVM", "java", "keytool -importcert -noprompt -file ca.pem -keystore ts -storepass changeit >&2 && java -Djavax.net.ssl.trustStore=ts -Djavax.net.ssl.trustStorePassword=changeit Get.java https://example.com/x", "^world: example.com /x",
			"java Get.java https://other.test/", true,
		},
		{"Chromium", "chromium", browse + "https://quic.test/page", "world: quic.test /second", browse + "https://other.test/ | grep world:", true},
		{"git over https", "git", "git -c http.sslCAInfo=ca.pem clone -q https://git.test/repo.git && cat repo/README", "^cloned", "git clone -q https://other.test/repo.git", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.long && os.Getenv("AGENTSAFE_TEST_LONG") == "" {
				t.Skip("probe AGENTSAFE_TEST_LONG: not set, and the client takes its time")
			}
			need(t, tc.program)
			outside.gitRepository(t)
			network := rules("example.com", "tcp://git.test:5432", "git.test", "packages.test", "quic.test")
			r := run(t, network, tc.allowed)
			if r.out.ExitCode != 0 || !regexp.MustCompile(tc.want).MatchString(r.out.Stdout) {
				t.Errorf("want %q\n%v", tc.want, r)
			}
			began := time.Now()
			r = run(t, network, tc.refused)
			if r.out.ExitCode == 0 || strings.Contains(r.out.Stdout, "world:") {
				t.Errorf("not refused after %s\n%v", time.Since(began), r)
			}
		})
	}
}

// gitRepository makes a bare repository that the world serves over https at /repo.git, and sshd below its path.
func (w *world) gitRepository(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(box.Dir, "repo.git")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	box.MustRun(t, "sh", "-ec", `
export HOME=`+box.Dir+` GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
git init -q -b main `+box.Dir+`/src; cd `+box.Dir+`/src; echo cloned >README; git add README; git commit -qm one
git clone -q --bare . `+dir+`; cd `+dir+`; git update-server-info; rm -rf `+box.Dir+`/src`)
	return dir
}

// TestSSH: git over ssh with a real server, whose host key a rule pins.
func TestSSH(t *testing.T) {
	need(t, "git", "ssh", "/usr/sbin/sshd")
	repo := outside.gitRepository(t)
	dir := box.TempDir(t)
	box.MustRun(t, "sh", "-ec", "mkdir -p /run/sshd; cd "+dir+"; for k in host task other; do ssh-keygen -q -t ed25519 -N '' -f $k; done; chmod 755 .; chmod 644 task.pub")
	config := "Port 2222\nHostKey " + dir + "/host\nAuthorizedKeysFile " + dir + "/task.pub\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n"
	if err := os.WriteFile(filepath.Join(dir, "sshd_config"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	server := box.Start(t, harness.Cmd{Args: []string{"ip", "netns", "exec", worldName, "/usr/sbin/sshd", "-D", "-e", "-f", dir + "/sshd_config"}, Timeout: 5 * time.Minute})
	t.Cleanup(func() { server.Stop(t) })
	fingerprint := func(key string) string {
		return strings.Fields(box.MustRun(t, "ssh-keygen", "-lf", filepath.Join(dir, key+".pub")))[1]
	}
	key, err := os.ReadFile(filepath.Join(dir, "task"))
	if err != nil {
		t.Fatal(err)
	}
	clone := "umask 077; cat >key <<'E'\n" + string(key) + "E\n" +
		`for i in 1 2 3 4 5 6 7 8; do GIT_SSH_COMMAND="ssh -F none -i key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes -o ConnectTimeout=10" git clone -q ssh://root@git.test:2222` + repo + ` repo && cat repo/README && exit; sleep 0.3; done; curl -sS http://gateway.agentsafe.internal/; exit 1`
	for _, tc := range []struct {
		name, rule, want string
		exit             int
	}{
		{"any host key", "ssh://git.test:2222", "^cloned", 0},
		{"the pinned one", "ssh://git.test:2222 " + fingerprint("other") + "," + fingerprint("host"), "^cloned", 0},
		{"another pinned", "ssh://git.test:2222 " + fingerprint("other"), `wrong-host-key.*` + regexp.QuoteMeta(fingerprint("host")), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := run(t, rules(tc.rule), clone)
			if r.out.ExitCode != tc.exit || !regexp.MustCompile(tc.want).MatchString(strings.ReplaceAll(r.out.Stdout, `\/`, "/")) {
				t.Errorf("want %s\n%v\n%s", tc.want, r, server.Output())
			}
		})
	}
}
