package stacks

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// devcontainer is the runtime whose profile docs/ENGINES.md shows.
const devcontainer = "agentsafe-devcontainer"

// installDevcontainer installs the profile that docs/ENGINES.md shows and registers a runtime for it.
func installDevcontainer(t *testing.T) {
	t.Helper()
	blocks, err := harness.DocBlocks("ENGINES.md", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(box.TempDir(t), "devcontainer.yaml")
	if err := os.WriteFile(file, []byte(blocks[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	_, ours := harness.Peers(t)
	box.MustRun(t, filepath.Join(filepath.Dir(ours.Path), "agentsafectl"), "profile", "install", file)
	engine.Configure(t, map[string]any{"runtimes": engine.Runtimes(map[string][]string{devcontainer: {"--profile", "devcontainer"}})})
}

// workbench is a devcontainer that has been started as editors start it.
type workbench struct {
	t    *testing.T
	name string
}

func openWorkbench(t *testing.T, runtime, dir string) *workbench {
	t.Helper()
	w := &workbench{t, box.ID()}
	t.Cleanup(func() { engine.Do(t, "rm", "--force", "--volumes", w.name) })
	const keep = "echo Container started\ntrap \"exit 0\" 15\nexec \"$@\"\nwhile sleep 1 & wait $!; do :; done"
	engine.Must(t, "run", "--sig-proxy=false", "--detach", "--name", w.name, "--runtime", runtime,
		"--mount", "type=bind,source="+dir+",target=/workspaces/project,consistency=cached",
		"--label", "devcontainer.local_folder="+dir, "--env", "EDITOR=code --wait", "--init", "--entrypoint", "/bin/sh", image, "-c", keep, "-")
	eventually(t, "the container has started", func() bool { return strings.Contains(engine.Must(t, "logs", w.name), "Container started") })
	return w
}

// in runs a command in the container as editors do: a shell that reads what to do from its input.
func (w *workbench) in(user, script string, env ...string) harness.Result {
	w.t.Helper()
	args := []string{"exec", "--interactive", "--user", user}
	for _, e := range env {
		args = append(args, "--env", e)
	}
	return box.Run(w.t, harness.Cmd{Args: engine.Args(append(args, w.name, "/bin/sh")...), Stdin: script + "\n"})
}

func (w *workbench) out(user, script string, env ...string) string {
	w.t.Helper()
	r := w.in(user, script, env...)
	if r.Exit != 0 {
		w.t.Errorf("%v", r)
	}
	return strings.TrimSpace(r.Stdout)
}

// TestDevcontainer does what an editor does in a container of its own, and what the person in its terminal does.
func TestDevcontainer(t *testing.T) {
	importStack(t)
	installDevcontainer(t)
	var stories [2]string
	t.Run("under", func(t *testing.T) {
		for i, runtime := range []string{"runc", devcontainer} {
			t.Run(runtime, func(t *testing.T) {
				t.Parallel()
				stories[i] = develop(t, runtime)
			})
		}
	})
	if stories[0] != stories[1] {
		t.Errorf("not the same:\n--- runc\n%s--- %s\n%s", stories[0], devcontainer, stories[1])
	}
	for _, want := range []string{"sudo: 0\nroot", "terminal: /dev/pts/N\napp\nroot", `"changed":true`} {
		if !strings.Contains(stories[0], want) {
			t.Errorf("under runc nothing says %q:\n%s", want, stories[0])
		}
	}
}

func develop(t *testing.T, runtime string) string {
	dir := folder(t, "devcontainer")
	box.MustRun(t, "chown", "-R", "1000:1000", dir)
	w := openWorkbench(t, runtime, dir)
	var s story

	s.tell("who", w.out("root", "id -un; uname -s; test -w /etc/passwd && echo writable"))
	s.tell("environment of a login", w.out("app", `bash -lic env </dev/null 2>/dev/null | grep -E "^(HOME|EDITOR|A|USER|PATH)=" | sort`, "A=b"))
	tar := box.Run(t, harness.Cmd{Args: []string{"tar", "-C", filepath.Join("testdata", "devcontainer"), "-cz", "server.js", "forward.js"}})
	r := box.Run(t, harness.Cmd{
		Args:  engine.Args("exec", "-i", "-u", "app", w.name, "/bin/sh", "-c", "mkdir -p ~/.server && tar --no-same-owner -xz -C ~/.server && ls ~/.server"),
		Stdin: tar.Stdout,
	})
	s.tell("server unpacked", r.Exit, r.Stdout)
	s.tell("server started", w.out("app", "cd ~/.server; nohup node server.js ~/.server/port >~/.server/log 2>&1 & echo yes", "EDITOR_AGENT=1"))
	eventually(t, "the server writes its port", func() bool { return w.in("app", "test -s ~/.server/port").Exit == 0 })

	s.tell("workspace", w.out("app", `cd /workspaces/project; git init -q . && git add . && git -c user.name=a -c user.email=a@example.test commit -qm one && git log --format=%s; stat -c %U:%G .git`))
	s.tell("on the host", box.MustRun(t, "stat", "-c", "%u:%g", filepath.Join(dir, ".git")))
	s.tell("server", w.forward("/"))
	s.tell("terminal", w.forward("/terminal"))
	s.tell("sudo", w.out("app", "sudo -n id -u; sudo -n -- sh -c 'echo new >/root/made; stat -c %U /root/made'; sudo -n -u postgres id -un 2>&1 | tail -1"))
	s.tell("su", w.out("root", "su app -c 'id -un'; su - app -c pwd"))
	s.tell("passwd of a user", w.out("root", "echo app:secret | chpasswd && grep -c '^app:[$]' /etc/shadow"))

	var many sync.WaitGroup
	out := make([]string, 12)
	for i := range out {
		many.Go(func() {
			out[i] = engine.Do(t, "exec", "-u", "app", w.name, "sh", "-c", "echo one; echo two >&2; exit 3").Stdout
		})
	}
	many.Wait()
	s.tell("many at once", strings.Join(out, ""))

	engine.Must(t, "stop", "--time", "10", w.name)
	s.tell("stopped", inspect(t, w.name, "{{.State.ExitCode}}"))
	engine.Must(t, "start", w.name)
	s.tell("kept", w.out("root", "cat /root/made; ls /home/app/.server; ps -C node -o pid= | wc -l"))
	return s.String()
}

// forward asks the server for a page through an exec that forwards its port.
func (w *workbench) forward(path string) string {
	w.t.Helper()
	port := w.out("app", "cat ~/.server/port")
	r := box.Run(w.t, harness.Cmd{
		Args:  engine.Args("exec", "-i", "-u", "app", w.name, "sh", "-c", "exec node ~/.server/forward.js "+port),
		Stdin: "GET " + path + " HTTP/1.0\r\n\r\n",
	})
	_, body, _ := strings.Cut(r.Stdout, "\r\n\r\n")
	if body == "" {
		w.t.Errorf("no answer from %s: %v\n%s", path, r, w.in("app", "cat ~/.server/log").Stdout)
	}
	return strings.TrimSpace(body)
}

// TestSudoNeedsThePack: under the default profile set-id programs have no rights, and under one with the pack the rest of
// the policy still holds for what sudo starts.
func TestSudoNeedsThePack(t *testing.T) {
	importStack(t)
	installDevcontainer(t)
	const script = "sudo -n grep -E '^(NoNewPrivs|Seccomp|CapBnd):' /proc/self/status; sudo -n mount -t tmpfs none /mnt; echo $?; sudo -n mknod /tmp/sda b 8 0; echo $?"
	run := func(runtime string) harness.Result {
		return engine.Do(t, "run", "--rm", "--runtime", runtime, "-u", "app", image, "sh", "-c", script)
	}
	if r := run("agentsafe"); strings.Contains(r.Stdout, "Seccomp") || !strings.Contains(r.Stderr, "no new privileges") {
		t.Errorf("sudo works without its pack, or does not say why it does not:\n%v", r)
	}
	r := run(devcontainer)
	for _, want := range []string{"NoNewPrivs:\t0", "Seccomp:\t2", "CapBnd:\t" + harness.AgentCapabilities} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("under the pack nothing says %q:\n%v", want, r)
		}
	}
	if fails := strings.Count(r.Stdout, "\n1\n") + strings.Count(r.Stdout, "\n32\n"); fails != 2 {
		t.Errorf("a mount or a device node passed:\n%v", r)
	}
}
