package layers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// step is one exec of a session. A wrong one is taken back, and is not in the session that the result is compared with.
type step struct {
	script string
	wrong  bool
	fails  bool
}

// session30 is what an agent does to a third-party package with its tests: edit, build, test, delete the wrong folder,
// git with branches, worktrees and merges, package installation.
var session30 = []step{
	{script: "git status --short"},
	{script: "cp -r /opt/npm/cache /tmp/cache && npm ci --offline --no-audit --no-fund --cache /tmp/cache --loglevel=error | grep -o 'added [0-9]* packages'"},
	{script: "npm test >/tmp/log 2>&1; grep -c '^# ok' /tmp/log"},
	{script: `sed -i '1i // looked through' index.js`},
	{script: `printf '\n## Notes\n\nRead twice.\n' >>README.md`},
	{script: `echo 'throw new Error("broken")' >>index.js; npm test >/dev/null 2>&1; exit 3`, wrong: true, fails: true},
	{script: "npm test >/tmp/log 2>&1; grep -c '^# ok' /tmp/log"},
	{script: "git add -A && git commit -qm 'read through'"},
	{script: "git switch -qc feature"},
	{script: `mkdir -p lib && printf 'module.exports = require("../index.js");\n' >lib/main.js`},
	{script: "rm -rf test", wrong: true},
	{script: "ls test | wc -l"},
	{script: `node -e 'const m = require("./lib/main.js"); if (m(["--a=1"]).a !== 1) process.exit(1)'`},
	{script: "git add lib && git commit -qm 'a library'"},
	{script: "git worktree add -q -b side wt && git worktree list | wc -l"},
	{script: "cd wt && echo side >>SIDE.md && git add SIDE.md && git commit -qm side && git status --short"},
	{script: "git merge -q --no-edit side && cat SIDE.md"},
	{script: "git worktree remove wt && git worktree prune && git branch -qD side"},
	{script: "rm -rf .git", wrong: true},
	{script: "git fsck --strict && git log --oneline | wc -l"},
	{script: "echo draft >draft && git add draft && git stash -q && test ! -e draft && git stash pop -q && cat draft"},
	{script: "find . -name '*.js' -not -path './node_modules/*' -delete; git reset -q --hard HEAD~2", wrong: true},
	{script: "git mv draft docs.md && git commit -qm 'draft is a document' && git show --stat --format=%s | tail -1"},
	{script: "mkdir -p bin && printf '#!/bin/sh\\nexec node lib/main.js\\n' >bin/run && chmod 755 bin/run && ln -s run bin/alias && ln bin/run bin/hard"},
	{script: "mv bin/hard bin/other && cmp bin/run bin/other"},
	{script: "python3 -m venv --without-pip .venv && .venv/bin/python -c 'print(1)' && rm -rf .venv"},
	{script: "npm pack --silent --cache /tmp/npm && tar -tzf minimist-1.2.8.tgz | wc -l && rm minimist-1.2.8.tgz"},
	{script: `for i in $(seq 300); do echo $i >bin/f$i; done; rm bin/f*; truncate -s 1M bin/sparse; chmod 600 bin/sparse`},
	{script: "git add -A && git commit -qm 'programs' && git gc -q && git tag done"},
	{script: "git fsck --strict && git status --short | wc -l"},
}

// gitEnv makes commits whose names don't depend on when and by whom they are made.
var gitEnv = []string{
	"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.test", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.test",
	"GIT_AUTHOR_DATE=2024-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2024-01-01T00:00:00Z", "HOME=/root", "LC_ALL=C", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
	"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
}

func envFlags(flag string) []string {
	var out []string
	for _, e := range gitEnv {
		out = append(out, flag, e)
	}
	return out
}

// dockerFlags give a container of a small image the programs of the Debian one, and the folder to work in.
func dockerFlags(rootfs, dir string) []string {
	out := append([]string{"--network", "none", "-v", dir + ":/job", "-w", "/job"}, envFlags("-e")...)
	for from, to := range map[string]string{
		"usr": "/usr", "usr/bin": "/bin", "usr/sbin": "/sbin", "usr/lib": "/lib", "usr/lib64": "/lib64", "opt": "/opt", "etc/alternatives": "/etc/alternatives",
	} {
		out = append(out, "-v", filepath.Join(rootfs, from)+":"+to+":ro")
	}
	return out
}

// repository makes a folder with the package in a git repository, by a container of the engine.
func repository(t *testing.T, p harness.Peer, rootfs string) string {
	t.Helper()
	dir := box.TempDir(t)
	args := append([]string{"run", "--rm", "--runtime", p.Name}, dockerFlags(rootfs, dir)...)
	docker.Must(t, append(args, image, "sh", "-ec", "cp -r /opt/npm/minimist/. . && echo node_modules >.gitignore && git init -q -b main . && git add -A && git commit -qm start")...)
	return dir
}

// play runs the steps and takes the wrong ones back; it returns what they print, of those that count.
func play(t *testing.T, exec func(script string) harness.Result, undo func()) string {
	t.Helper()
	var out strings.Builder
	for i, s := range session30 {
		if s.wrong && undo == nil {
			continue
		}
		r := exec(s.script)
		if (r.Exit != 0) != s.fails {
			t.Fatalf("step %d: %s\n%v", i+1, s.script, r)
		}
		if s.wrong {
			undo()
			continue
		}
		fmt.Fprintf(&out, "%d: %s\n", i+1, strings.TrimSpace(r.Stdout))
	}
	return out.String()
}

// treeHash is a folder by names, kinds, modes and contents. git's own directory is compared by what git says of it.
func treeHash(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if rel == ".git" {
			return filepath.SkipDir
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			text += " " + hex.EncodeToString(sum[:])
		case info.Mode()&os.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			text += " -> " + target
		}
		out[rel] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func compareTrees(t *testing.T, got, want map[string]string) {
	t.Helper()
	wrong := 0
	for p, w := range want {
		if got[p] != w && wrong < 20 {
			wrong++
			t.Errorf("%s is %q, want %q", p, got[p], w)
		}
	}
	for p, g := range got {
		if _, ok := want[p]; !ok && wrong < 20 {
			wrong++
			t.Errorf("%s is there: %q", p, g)
		}
	}
}

// TestSession plays the same session under Docker, containerd with our shim and agentsafectl run, and promotes it. The
// host's tree is then, file by file, what the session makes of a plain folder under runc without its wrong steps.
func TestSession(t *testing.T) {
	runc, agentsafe := harness.Peers(t)
	system, err := harness.Debian(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// As a directory, which all three can take: an import into each engine is a minute of unpacking.
	rootfs := box.TempDir(t)
	box.MustRun(t, "tar", "-C", rootfs, "-xf", system.Tar)
	expected := repository(t, runc, rootfs)
	plain := docker.Up(t, runc, append(dockerFlags(rootfs, expected), image, "sleep", "1000")...)
	wantOut := play(t, func(script string) harness.Result { return docker.Do(t, "exec", plain, "bash", "-c", script) }, nil)
	docker.Must(t, "rm", "--force", plain)
	want := treeHash(t, expected)
	git := func(dir string, args ...string) string {
		return box.MustRun(t, append([]string{"git", "-c", "safe.directory=*", "-C", dir}, args...)...)
	}
	// Of commits of one second git gives no order.
	log := func(dir string) string {
		lines := strings.Split(git(dir, "log", "--all", "--format=%H %P %s"), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	wantLog := log(expected)
	for _, e := range sessionEngines(t, agentsafe, rootfs) {
		t.Run(e.name, func(t *testing.T) {
			if e.name != "docker" && os.Getenv("AGENTSAFE_TEST_LONG") == "" {
				t.Skip("probe AGENTSAFE_TEST_LONG: not set")
			}
			dir := repository(t, runc, rootfs)
			before, beforeGit := treeHash(t, dir), git(dir, "rev-parse", "HEAD")
			s := e.start(t, dir)
			out := play(t, s.run, func() {
				h := history(t, s.id)
				mustCtl(t, "undo", fmt.Sprintf("%s@%d", s.id, h[len(h)-1].N))
			})
			if out != wantOut {
				t.Errorf("the session prints\n%s\nand in a plain folder\n%s", out, wantOut)
			}
			for _, tx := range history(t, s.id) {
				if tx.Status != "committed" && tx.Status != "undone" {
					t.Errorf("transaction %+v", tx)
				}
			}
			compareTrees(t, treeHash(t, dir), before)
			if got := git(dir, "rev-parse", "HEAD"); got != beforeGit {
				t.Errorf("the host's repository has moved to %s", got)
			}
			s.remove()
			mustCtl(t, "promote", s.id)
			// What runs on the host by itself has to be named: git's directory, the packages' scripts.
			mustCtl(t, "promote", "--flagged", s.id, ".git", "node_modules")
			compareTrees(t, treeHash(t, dir), want)
			if got := log(dir); got != wantLog {
				t.Errorf("git log:\n%s\nwant:\n%s", got, wantLog)
			}
			if got := git(dir, "fsck", "--strict", "--full"); strings.Contains(got, "missing") || strings.Contains(got, "error") {
				t.Errorf("git fsck: %s", got)
			}
			if got := git(dir, "status", "--short"); got != "" {
				t.Errorf("git status: %s", got)
			}
			mustCtl(t, "layers", "rm", s.id)
		})
	}
}

// startRun starts a task of agentsafectl run that waits for execs on a folder, overlaid and with transactions.
func startRun(t *testing.T, dir string, flags ...string) liveSession {
	t.Helper()
	profile := filepath.Join(box.TempDir(t), "p.yaml")
	text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: overlaid}\nextends: agent\n" +
		"filesystem: {workspace: {mode: overlay}}\nexec: {transaction: auto, base: [cat /tmp/probe]}\n"
	if err := os.WriteFile(profile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	id := box.ID()
	args := append([]string{control(t), "run", "--quiet", "--profile", profile, "--id", id, "--workspace", dir}, flags...)
	run := box.Start(t, harness.Cmd{
		Args:    append(append(args, envFlags("-e")...), "--", "sh", "-c", "trap 'exit 0' TERM; echo ready >/tmp/probe; while :; do sleep 0.2; done"),
		Timeout: 20 * time.Minute,
	})
	stop := sync.OnceValue(func() harness.Result {
		unix.Kill(run.Pid(), unix.SIGTERM) //nolint:errcheck // gone is what we want
		return run.Wait(t)
	})
	t.Cleanup(func() { stop() })
	deadline := time.Now().Add(time.Minute)
	for ctl(t, "exec", id, "--", "cat", "/tmp/probe").Exit != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("the task does not start:\n%v", stop())
		}
		time.Sleep(50 * time.Millisecond)
	}
	return liveSession{
		id,
		func(script string) harness.Result {
			return ctl(t, append(append([]string{"exec"}, envFlags("-e")...), id, "--", "bash", "-c", script)...)
		},
		func() { stop() },
	}
}

type sessionEngine struct {
	name  string
	start func(t *testing.T, dir string) liveSession
}

// liveSession is a container that waits for execs.
type liveSession struct {
	id     string
	run    func(script string) harness.Result
	remove func()
}

func sessionEngines(t *testing.T, agentsafe harness.Peer, rootfs string) []sessionEngine {
	t.Helper()
	shim := filepath.Join(filepath.Dir(agentsafe.Path), "containerd-shim-agentsafe-v2")
	overlay := []string{"AGENTSAFE_WORKSPACE=overlay", "AGENTSAFE_TRANSACTION=auto"}
	return []sessionEngine{
		{"docker", func(t *testing.T, dir string) liveSession {
			args := append(dockerFlags(rootfs, dir), "-e", overlay[0], "-e", overlay[1])
			name := docker.Up(t, agentsafe, append(args, image, "sleep", "1000")...)
			return liveSession{
				docker.Must(t, "inspect", "--format", "{{.Id}}", name),
				func(script string) harness.Result { return docker.Do(t, "exec", name, "bash", "-c", script) },
				func() { docker.Must(t, "rm", "--force", name) },
			}
		}},
		{"containerd", func(t *testing.T, dir string) liveSession {
			id := box.ID()
			args := append([]string{
				"run", "--runtime", shim, "--detach", "--cwd", "/job", "--mount", "type=bind,src=" + dir + ",dst=/job,options=rbind:rw",
				"--env", overlay[0], "--env", overlay[1],
			}, envFlags("--env")...)
			box.MustRun(t, containerd.Args(append(args, "--rootfs", rootfs, id, "sleep", "1000")...)...)
			n := 0
			remove := removeTask(t, id)
			t.Cleanup(remove)
			return liveSession{id, func(script string) harness.Result {
				n++
				return containerd.Do(t, "tasks", "exec", "--exec-id", fmt.Sprintf("s%d", n), "--cwd", "/job", id, "bash", "-c", script)
			}, remove}
		}},
		{"agentsafectl", func(t *testing.T, dir string) liveSession { return startRun(t, dir, "--rootfs", rootfs) }},
	}
}
