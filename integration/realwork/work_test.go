package realwork

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// timings differ from run to run: "(0.01s)", "in 0.12s", "# duration_ms 3.2".
func timeless(s string) string {
	return regexp.MustCompile(`\(?\d+(\.\d+)?m?s\)?|duration_ms [\d.]+|\b[0-9a-f]{7,40}\b`).ReplaceAllString(s, "T")
}

func TestWork(t *testing.T) {
	for _, tc := range []struct {
		name   string
		flags  []string
		script string
		prints string
		exit   int
	}{
		{
			name: "go test of a third-party module",
			flags: []string{
				"-v", os.Getenv(envToolchain) + ":/usr/local/go:ro", "-v", os.Getenv(envModule) + ":/module:ro",
				"-e", "GOFLAGS=-mod=mod", "-e", "GOPROXY=off", "-e", "GOTOOLCHAIN=local", "-e", "CGO_ENABLED=0",
			},
			script: "export PATH=$PATH:/usr/local/go/bin; cp -r /module /tmp/m && chmod -R u+w /tmp/m && cd /tmp/m && go test -vet=off ./cmp/... 2>&1 | sed 's/\t[(0-9].*//'",
			prints: `(?m)^ok  \tgithub.com/google/go-cmp/cmp$`,
		},
		{
			name: "git",
			script: `git config --global user.name a; git config --global user.email a@example.test; git config --global init.defaultBranch main
				git init -q origin && cd origin && echo one >f && git add . && git commit -qm one && cd ..
				git clone -q origin clone && cd clone && git worktree add -q -b side ../side && cd ../side && echo two >>f && git commit -qam two
				cd ../clone && git merge -q side && git log --format=%s && git push -q origin HEAD:refs/heads/new && git -C ../origin branch && git fsck 2>&1 && git gc -q && git worktree list | wc -l`,
			prints: "(?s)two\none\n.*new\n",
		},
		{
			name: "npm install and test",
			script: `cp -r /opt/npm/minimist /tmp/p && cd /tmp/p && npm ci --offline --no-audit --no-fund --cache /opt/npm/cache 2>&1 | grep -o "added [0-9]* packages"
				npm test 2>&1 | grep -E "^# (tests|pass|fail|ok)"`,
			prints: "(?s)added \\d+ packages.*# ok",
		},
		{
			name: "node",
			script: `cat >s.mjs <<'E'
import http from "node:http"; import fs from "node:fs"; import {Worker} from "node:worker_threads"; import {execFileSync} from "node:child_process";
const s = http.createServer((q, r) => r.end("served")).listen(0, "127.0.0.1", async () => {
  console.log(await (await fetch("http://127.0.0.1:" + s.address().port)).text()); s.close();
  fs.watch("/tmp", () => {}).close(); console.log(execFileSync("echo", ["child"]).toString().trim());
  new Worker("console.log('worker')", {eval: true});
});
E
node s.mjs; node -e 'process.exit(7)'`,
			prints: "served\nchild\nworker", exit: 7,
		},
		{
			name: "python tests",
			script: `mkdir p && cd p && cat >test_it.py <<'E'
import multiprocessing, socket, subprocess, tempfile, threading, unittest, sqlite3, asyncio, os, pytest

def square(x): return x * x

def test_pool():
    with multiprocessing.Pool(2) as pool: assert pool.map(square, range(4)) == [0, 1, 4, 9]

def test_semaphore_in_shm():
    s = multiprocessing.Semaphore(1); assert s.acquire(timeout=1)

def test_subprocess(): assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3

def test_socketpair():
    a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"

def test_database(tmp_path):
    db = sqlite3.connect(tmp_path / "db"); db.execute("create table t(a)"); db.commit()

def test_asyncio(): asyncio.run(asyncio.create_subprocess_exec("true"))

def test_wrong(): assert 1 == 2
E
python3 -m pytest -q --color=no -p no:cacheprovider 2>&1 | grep -E "passed|failed|^FAILED"; python3 -m unittest -q nosuch 2>/dev/null; echo $?; python3 -m venv --without-pip /tmp/v && /tmp/v/bin/python -c 'print("venv")'`,
			prints: "(?s)FAILED test_it.py::test_wrong.*1 failed, 6 passed.*venv",
		},
		{
			name: "a C build with make",
			script: `mkdir c && cd c && printf '#include <stdio.h>\n#include <pthread.h>\nstatic void *f(void *p) { puts("thread"); return p; }\nint main(void) { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); puts("built"); return 5; }\n' >a.c
printf 'all: a\na: a.o\n\t$(CC) -pthread -o $@ $<\n%%.o: %%.c\n\t$(CC) -O2 -Wall -c $<\nclean:\n\trm -f a a.o\n' >Makefile; make -j4 && ./a; echo $?; make -s clean; ls; mkfifo /tmp/fifo && (echo through >/tmp/fifo & cat /tmp/fifo)`,
			prints: "(?s)thread\nbuilt\n5\nMakefile\na.c\nthrough\n$",
		},
		{
			name:   "files",
			script: `mkdir d && cd d && seq 300 | xargs -P4 -I{} sh -c 'echo {} >f{}' && ls | wc -l && mv f1 g1 && ln g1 g2 && ln -s g2 g3 && tar -cf ../d.tar . && mkdir ../e && tar -C ../e -xf ../d.tar && diff -r . ../e && echo same && truncate -s 1G sparse && [ $(stat -c %s sparse) = 1073741824 ] && echo sparse && sha256sum g3 && find . -type f -delete && ls | wc -l && df / >/dev/null && ps aux | wc -l`,
			prints: "(?s)300\nsame\nsparse\n",
		},
		{
			name:   "as a user",
			flags:  []string{"--user", "app", "-e", "HOME=/home/app", "-w", "/home/app"},
			script: `git init -q r && cd r && echo x >f && git add f && git -c user.name=a -c user.email=a@b commit -qm x && git log --format=%s; cat /etc/shadow; touch /etc/x; id -u; python3 -c 'import os; os.setuid(0)' 2>&1 | tail -1`,
			prints: "(?s)x\n1000\nPermissionError",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				args := append([]string{"run", "--rm", "--runtime", p.Name, "--network", "none", "-w", "/root", "-e", "HOME=/root"}, tc.flags...)
				r := box.Run(t, harness.Cmd{Args: engine.Args(append(args, image, "bash", "-c", tc.script)...), Timeout: 10 * time.Minute})
				r.Stdout = timeless(r.Stdout)
				return r
			}, harness.SameExit, harness.SameOutput, harness.Exits(tc.exit), harness.Prints(tc.prints))
		})
	}
}

// TestWorkspace works in a folder of the host: what was written is there afterwards, with the right owner.
func TestWorkspace(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		dir := box.TempDir(t)
		if err := os.WriteFile(filepath.Join(dir, "calc.py"), []byte("def add(a, b):\n    return a - b\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		const script = `printf 'from calc import add\ndef test_add(): assert add(2, 3) == 5\n' >test_calc.py
			python3 -m pytest -q -p no:cacheprovider >/dev/null; echo before $?; sed -i 's/a - b/a + b/' calc.py
			PYTHONDONTWRITEBYTECODE=1 python3 -B -m pytest -q -p no:cacheprovider >/dev/null; echo after $?`
		name := engine.Up(t, p, "--network", "none", "-v", dir+":/work", "-w", "/work", image, "sleep", "1000")
		r := engine.Do(t, "exec", name, "bash", "-c", script)
		fixed, err := os.ReadFile(filepath.Join(dir, "calc.py"))
		if err != nil || !strings.Contains(string(fixed), "a + b") {
			t.Errorf("the host's file is %q (%v)", fixed, err)
		}
		return r
	}, harness.SameExit, harness.SameOutput, harness.Prints("^before 1\nafter 0\n$"))
}
