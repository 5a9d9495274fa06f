package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// toolchain is a real job of a toolchain of this host, in a folder of its own.
type toolchain struct {
	// tools have to be installed in what a task sees of the host.
	tools   []string
	files   map[string]string
	profile string
	job     string
	want    string
	// refused is what the profile must not let pass.
	refused string
	// outside is a profile under which the job itself fails; "" for none.
	outside string
	// user is who does the job; "" is the owner of the folder.
	user string
	// npm are packages of the npm registry that the job finds in tools/node_modules.
	npm []string
	// long jobs run with AGENTSAFE_TEST_LONG alone: they compile Go's standard library, or need packages of 100 MB.
	long bool
}

// browserProfile is offline with what Chromium's sandbox needs.
const browserProfile = "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: browser}\nextends: offline\nsyscalls: {packs: [browser]}\n"

// debugProfile is lint with a debugger.
const debugProfile = "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: debugger}\nextends: offline\nsyscalls: {packs: [debug]}\n"

func toolchains() map[string]toolchain {
	const network = "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'"
	return map[string]toolchain{
		"make and gcc": {
			tools: []string{"make", "gcc"}, profile: "offline", want: "42\n", refused: network,
			files: map[string]string{"app.c": "#include <stdio.h>\nint main(void){puts(\"42\");return 0;}\n", "Makefile": "app: app.c\n\t@gcc -O2 -pipe -o $@ $<\n"},
			job:   "make -s app && ./app",
		},
		"go build and test": {
			long: true, tools: []string{"go"}, profile: "offline", want: "PASS\n", refused: network,
			files: map[string]string{
				"go.mod": "module shop\n\ngo 1.21\n", "shop.go": "package shop\n\nfunc Two() int { return 2 }\n",
				"shop_test.go": "package shop\n\nimport (\"net\"; \"testing\")\n\nfunc TestTwo(t *testing.T) {\n\tif Two() != 2 { t.Fatal() }\n\tl, err := net.Listen(\"tcp\", \"127.0.0.1:0\")\n\tif err != nil { t.Fatal(err) }\n\tl.Close()\n}\n",
			},
			job: "GOFLAGS=-mod=mod GOTOOLCHAIN=local go vet ./... && GOTOOLCHAIN=local go test -c -o t . && ./t",
		},
		"python": {
			tools: []string{"/usr/bin/python3"}, profile: "lint", want: "6\n", refused: "touch here",
			files: map[string]string{"a.py": "import multiprocessing, sqlite3, ssl, subprocess\ndef f(x): return x + 1\nif __name__ == '__main__':\n    with multiprocessing.Pool(2) as p: print(sum(p.map(f, [0, 1, 2])))\n"},
			job:   "/usr/bin/python3 -B a.py",
		},
		"node": {
			tools: []string{"/usr/bin/node"}, profile: "offline", want: "served\n", refused: network,
			files: map[string]string{"a.js": "const http = require('http'), fs = require('fs');\nconst s = http.createServer((q, r) => r.end('served')).listen(0, '127.0.0.1', () =>\n  http.get({port: s.address().port, host: '127.0.0.1'}, r => { r.on('data', d => { fs.writeFileSync('out', d); console.log(String(d)); s.close(); }); }));\n"},
			job:   "/usr/bin/node a.js",
		},
		"gdb under the pack debug": {
			tools: []string{"gdb", "gcc"}, profile: "./debugger.yaml", outside: "offline", want: "= 7\n", refused: network,
			files: map[string]string{"a.c": "int seven(void){return 7;}\nint main(void){return seven()-7;}\n", "debugger.yaml": debugProfile},
			job:   "gcc -g -o a a.c && gdb -q -batch -ex 'break seven' -ex run -ex finish ./a 2>&1 | grep -o '= 7$'",
		},
		"headless Chromium under the pack browser": {
			long: true, tools: []string{"chromium"}, profile: "./browser.yaml", outside: "offline", user: "1000:1000", want: "answer 42\n</body></html>\n", refused: network,
			files: map[string]string{"page.html": "<html><body>no<script>document.body.textContent = 'answer ' + 6 * 7</script></body></html>\n", "browser.yaml": browserProfile},
			job:   "/usr/lib/chromium/chromium --headless --disable-gpu --user-data-dir=/tmp/c --dump-dom file://$PWD/page.html 2>/tmp/log || { tail -3 /tmp/log; exit 1; }",
		},
		"cargo": {
			long: true, tools: []string{"/usr/bin/cargo"}, profile: "offline", want: "1 passed\n42\n", refused: network,
			files: map[string]string{
				"Cargo.toml":  "[package]\nname = \"shop\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
				"src/main.rs": "fn main() { println!(\"{}\", 6 * 7); }\n#[test]\nfn two() { assert_eq!(1 + 1, 2); }\n",
			},
			job: "/usr/bin/cargo test -q --offline 2>&1 | grep -o '1 passed'; /usr/bin/cargo run -q --offline",
		},
		"java": {
			tools: []string{"java", "javac"}, profile: "offline", want: "hello\n", refused: network,
			files: map[string]string{"A.java": "public class A { public static void main(String[] a) throws Exception { Thread t = new Thread(() -> System.out.println(\"hello\")); t.start(); t.join(); } }\n"},
			job:   "javac -J-Xmx256m A.java && java -Xmx128m A",
		},
		// A package of the workspace's own goes through the store, which links or copies, and its test forks.
		"pnpm": {
			long: true, tools: []string{"/usr/bin/node"}, npm: []string{"pnpm@12.4.2"}, profile: "offline", outside: "lint", want: "pass 1\n", refused: network,
			files: map[string]string{
				"package.json":     "{\"name\": \"shop\", \"private\": true, \"scripts\": {\"test\": \"node --test shop.test.js\"}, \"dependencies\": {\"two\": \"file:./two\"}}\n",
				"two/package.json": "{\"name\": \"two\", \"version\": \"1.0.0\"}\n", "two/index.js": "module.exports = 2;\n",
				"shop.test.js": "require('node:test')('two', () => require('node:assert').strictEqual(require('two'), 2));\n",
			},
			job: "pnpm() { /usr/bin/node tools/node_modules/pnpm/bin/pnpm.mjs \"$@\"; }; export CI=1; pnpm install --offline --store-dir /tmp/store >log 2>&1 || { cat log; exit 1; }; pnpm test >log 2>&1 || { cat log; exit 1; }; grep -o 'pass 1$' log",
		},
		// bun has an event loop of its own, asks for pidfds and io_uring, and maps its compiled code.
		"bun": {
			long: true, npm: []string{"@oven/bun-linux-x64@1.4.4"}, profile: "offline", outside: "lint", want: "1 pass\n42\n", refused: network,
			files: map[string]string{
				"two.ts":      "export const two: number = 2;\n",
				"two.test.ts": "import { expect, test } from \"bun:test\";\nimport { two } from \"./two\";\ntest(\"two\", async () => {\n  const s = Bun.serve({ port: 0, fetch: () => new Response(String(two)) });\n  expect(await (await fetch(s.url)).text()).toBe(\"2\");\n  expect(await Bun.spawn([\"true\"]).exited).toBe(0);\n  s.stop();\n});\n",
				"app.ts":      "import { two } from \"./two\";\nconsole.log(two * 21);\n",
			},
			job: "bun() { tools/node_modules/@oven/bun-linux-x64/bin/bun \"$@\"; }; bun test ./two.test.ts >log 2>&1 || { cat log; exit 1; }; grep -o '1 pass' log; bun build app.ts --target=bun --outfile=app.js >log 2>&1 || { cat log; exit 1; }; bun app.js",
		},
		"Playwright under the pack browser": {
			long: true, tools: []string{"/usr/bin/node", "chromium"}, npm: []string{"playwright-core@1.65.1"}, profile: "./browser.yaml", outside: "offline", user: "1000:1000",
			want: "clicked 42, a picture of 640x480\n", refused: network,
			files: map[string]string{
				"browser.yaml": browserProfile,
				"page.js": `const { chromium } = require('./tools/node_modules/playwright-core');
const page = "<button onclick=\"document.title = 'clicked ' + 6 * 7\">press</button>";
const server = require('http').createServer((q, r) => r.setHeader('content-type', 'text/html').end(page)).listen(0, '127.0.0.1', async () => {
  const b = await chromium.launch({ executablePath: '/usr/lib/chromium/chromium', chromiumSandbox: true, args: ['--disable-gpu'] });
  const p = await b.newPage({ viewport: { width: 640, height: 480 } });
  await p.goto('http://127.0.0.1:' + server.address().port + '/');
  await p.click('button');
  const png = await p.screenshot();
  console.log((await p.title()) + ', a picture of ' + png.readUInt32BE(16) + 'x' + png.readUInt32BE(20));
  await b.close();
  server.close();
});
`,
			},
			job: "/usr/bin/node page.js 2>/tmp/log || { tail -20 /tmp/log; exit 1; }",
		},
		"ruby": {
			long: true, tools: []string{"/usr/bin/ruby", "/usr/bin/rake"}, profile: "offline", outside: "lint", want: "1 runs, 2 assertions, 0 failures, 0 errors, 0 skips\n", refused: network,
			files: map[string]string{
				"Rakefile": "require 'rake/testtask'\nRake::TestTask.new { |t| t.pattern = '*_test.rb' }\n",
				"two_test.rb": "require 'minitest/autorun'\nrequire 'socket'\nclass Two < Minitest::Test\n  def test_two\n    s = TCPServer.new('127.0.0.1', 0)\n    Thread.new { s.accept.puts 2 }\n" +
					"    assert_equal '2', TCPSocket.new('127.0.0.1', s.addr[1]).gets.chomp\n    File.write('out', fork { exit! 0 }.to_s)\n    assert Process.wait2[1].success?\n  end\nend\n",
			},
			job: "/usr/bin/rake test >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; grep -o '1 runs.*' /tmp/log",
		},
		"gradle": {
			long: true, tools: []string{"gradle", "java"}, profile: "offline", outside: "lint", want: "42\n", refused: network,
			files: map[string]string{
				"build.gradle":               "apply plugin: 'java'\nrepositories { flatDir { dirs '/usr/share/java' } }\ndependencies { testCompile name: 'junit4'; testCompile name: 'hamcrest-core' }\n",
				"settings.gradle":            "rootProject.name = 'shop'\n",
				"src/main/java/Two.java":     "public class Two { static int two() { return 2; } public static void main(String[] a) { System.out.println(two() * 21); } }\n",
				"src/test/java/TwoTest.java": "public class TwoTest { @org.junit.Test public void two() { org.junit.Assert.assertEquals(2, Two.two()); } }\n",
			},
			job: "gradle --offline --no-daemon -q -g /tmp/g -Dorg.gradle.jvmargs=-Xmx512m build >/tmp/log 2>&1 || { tail -20 /tmp/log; exit 1; }; test -e build/test-results/test/TEST-TwoTest.xml; java -cp build/libs/shop.jar Two",
		},
		// Debian's own repository of a few plugins stands for the central one.
		"maven": {
			long: true, tools: []string{"mvn", "java"}, profile: "offline", outside: "lint", want: "Tests run: 1, Failures: 0, Errors: 0, Skipped: 0\n42\n", refused: network,
			files: map[string]string{
				"pom.xml": `<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>shop</groupId><artifactId>shop</artifactId><version>1</version>
<properties><maven.compiler.source>11</maven.compiler.source><maven.compiler.target>11</maven.compiler.target>
<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
<dependencies><dependency><groupId>junit</groupId><artifactId>junit</artifactId><version>4.x</version><scope>test</scope></dependency></dependencies>
</project>
`,
				"settings.xml":           "<settings><mirrors><mirror><id>debian</id><mirrorOf>*</mirrorOf><url>file:///usr/share/maven-repo</url></mirror></mirrors></settings>\n",
				"src/main/java/Two.java": "public class Two { static int two() { return 2; } public static void main(String[] a) { System.out.println(two() * 21); } }\n",
				"src/test/java/TwoTest.java": `import java.net.*;
public class TwoTest { @org.junit.Test public void two() throws Exception {
	try (ServerSocket s = new ServerSocket(0, 1, InetAddress.getLoopbackAddress()); Socket c = new Socket(s.getInetAddress(), s.getLocalPort())) {
		org.junit.Assert.assertEquals(2, Two.two());
	}
} }
`,
			},
			job: "mvn -B -s settings.xml -Dmaven.repo.local=/tmp/m2 package >log 2>&1 || { tail log; exit 1; }; grep -o '^.*Tests run: 1, [^T]*: 0$' log | sed 's/.*Tests/Tests/' | tail -1; java -cp target/shop-1.jar Two",
		},
		"git": {
			tools: []string{"git"}, profile: "offline", want: "1 file changed, 1 insertion(+)\n", refused: network,
			files: map[string]string{"a": "x\n"},
			job:   "git init -q . && git add a && git -c user.name=n -c user.email=e commit -qm m && git show --shortstat --format= | sed 's/^ //'",
		},
	}
}

// Each toolchain does its real work under the profile that is meant for it, and not what that refuses.
func TestToolchains(t *testing.T) {
	for name, c := range toolchains() {
		t.Run(name, func(t *testing.T) {
			if c.long && os.Getenv("AGENTSAFE_TEST_LONG") == "" {
				t.Skip("probe AGENTSAFE_TEST_LONG: not set")
			}
			for _, tool := range c.tools {
				if path, err := exec.LookPath(tool); err != nil || !strings.HasPrefix(path, "/usr/") {
					t.Skipf("probe toolchain: %s is not below /usr: %v", tool, err)
				}
			}
			b := newBench(t)
			if err := os.Chmod(b.workspace, 0o777); err != nil {
				t.Fatal(err)
			}
			for file, text := range c.files {
				path := filepath.Join(b.workspace, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if len(c.npm) > 0 {
				tools := filepath.Join(b.workspace, "tools")
				// Linked, where that goes: they are large, and what a task writes is kept in a layer.
				copied := exec.CommandContext(t.Context(), "sh", "-ec", `cp -al "$0" "$1" 2>/dev/null || { rm -rf "$1"; cp -a "$0" "$1"; }`, npmTools(t, c.npm...), tools)
				if out, err := copied.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			job := func(profile string) []string {
				args := []string{"run", "-q", "--profile", profile}
				if c.user != "" {
					args = append(args, "--user", c.user)
				}
				return append(args, "--", "sh", "-ec", c.job)
			}
			if c.outside != "" {
				if out, err := b.in(job(c.outside)...); err == nil {
					t.Errorf("the job passed under %s\n%s", c.outside, out)
				}
			}
			if out, err := b.in(job(c.profile)...); err != nil || !strings.HasSuffix(out, c.want) {
				t.Errorf("the job: %v\n%s", err, out)
			}
			if out, err := b.in("run", "-q", "--profile", c.profile, "--", "sh", "-ec", c.refused); err == nil {
				t.Errorf("%s passed\n%s", c.refused, out)
			}
		})
	}
}

// A debugger needs its pack.
func TestAttack_DebuggerWithoutPack(t *testing.T) {
	if _, err := exec.LookPath("gdb"); err != nil {
		t.Skipf("probe toolchain: %v", err)
	}
	b := newBench(t)
	out, err := b.in("run", "-q", "--profile", "agent", "--", "gdb", "-q", "-batch", "-ex", "run", "-ex", "info registers", "/bin/true")
	if err == nil && strings.Contains(out, "rip") {
		t.Errorf("gdb traced a process without the pack debug:\n%s", out)
	}
	if !strings.Contains(strings.ToLower(out), "operation not permitted") {
		t.Errorf("gdb does not say why: %v\n%s", err, out)
	}
}
