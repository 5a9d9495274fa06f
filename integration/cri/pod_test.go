package cri

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

const handler = "agentsafe"

// object is JSON as CRI's messages have it.
type object map[string]any

// pod is a running sandbox.
type pod struct{ id, dir, config string }

// runPod starts a sandbox under a handler; the end of the test removes it with its containers.
func runPod(t testing.TB, handler string, changes object) *pod {
	t.Helper()
	p := newPod(t, changes)
	p.id = engine.must(t, "runp", "--runtime="+handler, p.config)
	t.Cleanup(func() { p.remove(t) })
	return p
}

func newPod(t testing.TB, changes object) *pod {
	t.Helper()
	p := &pod{dir: box.TempDir(t)}
	name := box.ID()
	config := object{
		"metadata":      object{"name": name, "uid": name, "namespace": box.Tag, "attempt": 0},
		"log_directory": p.dir, "linux": object{"cgroup_parent": box.CgroupParent()},
	}
	maps.Copy(config, changes)
	p.config = p.write(t, "pod.json", config)
	return p
}

func (p *pod) write(t testing.TB, name string, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (p *pod) remove(t testing.TB) {
	t.Helper()
	if p.id != "" {
		engine.must(t, "stopp", p.id)
		engine.must(t, "rmp", "--force", p.id)
		p.id = ""
	}
}

// create makes a container of the pod, without starting it.
func (p *pod) create(t testing.TB, image string, changes object, command ...string) string {
	t.Helper()
	return engine.must(t, "create", "--with-pull", p.id, p.container(t, image, changes, command...), p.config)
}

func (p *pod) container(t testing.TB, image string, changes object, command ...string) string {
	t.Helper()
	name := box.ID()
	config := object{"metadata": object{"name": name, "attempt": 0}, "image": object{"image": image}, "log_path": name + ".log"}
	if len(command) > 0 {
		config["command"] = command
	}
	maps.Copy(config, changes)
	return p.write(t, name+".json", config)
}

// run makes a container of the pod and starts it.
func (p *pod) run(t testing.TB, image string, changes object, command ...string) string {
	t.Helper()
	id := p.create(t, image, changes, command...)
	engine.must(t, "start", id)
	return id
}

// status is the part of `crictl inspect` that tests look at.
type status struct {
	State, Reason string
	ExitCode      int
}

func inspect(t testing.TB, id string) status {
	t.Helper()
	var out struct{ Status status }
	if err := json.Unmarshal([]byte(engine.must(t, "inspect", id)), &out); err != nil {
		t.Fatal(err)
	}
	return out.Status
}

func waitExited(t testing.TB, id string) status {
	t.Helper()
	return eventually(t, "the container has ended", func() (status, bool) {
		s := inspect(t, id)
		return s, s.State == "CONTAINER_EXITED"
	})
}

// eventually repeats a question until its answer is good.
func eventually[T any](t testing.TB, what string, ask func() (T, bool)) T {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		v, ok := ask()
		if ok {
			return v
		}
		if time.Now().After(deadline) {
			t.Fatalf("want that %s, got %v", what, v)
		}
	}
}

// shims lists the processes of our shim that serve.
func shims(t testing.TB) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !bytes.HasPrefix(line, []byte(shimPath()+"\x00")) || !bytes.Contains(line, []byte(box.Tag)) && !bytes.Contains(line, []byte("k8s.io")) {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

func TestPod(t *testing.T) {
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	p := runPod(t, handler, nil)
	id := p.run(t, imageBusybox, nil, "sh", "-c", "echo out; echo err >&2; trap 'exit 3' TERM; while :; do sleep 0.1; done")
	t.Run("exec", func(t *testing.T) {
		for _, args := range [][]string{{"exec", "--sync", id}, {"exec", id}} {
			if got := engine.must(t, append(args, "echo", "in")...); strings.TrimSpace(got) != "in" {
				t.Errorf("%v prints %q", args, got)
			}
			r := engine.do(t, append(args, "sh", "-c", "echo no >&2; exit 6")...)
			if r.Exit == 0 || !strings.Contains(r.Stderr, "no") || !strings.Contains(r.Stderr, "6") {
				t.Errorf("%v", r)
			}
		}
		r := box.Run(t, harness.Cmd{Args: engine.crictl("exec", "--interactive", "--tty", id, "sh", "-c", "tty; read a; echo got $a; stty size"), TTY: true, Stdin: "word\n"})
		if r.Exit != 0 || !strings.Contains(r.Stdout, "/dev/pts/") || !strings.Contains(r.Stdout, "got word") {
			t.Errorf("with a terminal:\n%v", r)
		}
	})
	t.Run("logs", func(t *testing.T) {
		eventually(t, "both streams are in the log", func() (harness.Result, bool) {
			r := engine.do(t, "logs", id)
			return r, r.Stdout == "out\n" && r.Stderr == "err\n"
		})
	})
	t.Run("stats", func(t *testing.T) { testStats(t, p, id) })
	t.Run("update", func(t *testing.T) {
		engine.must(t, "update", "--memory", "104857600", id)
		r := engine.do(t, "exec", "--sync", id, "sh", "-c", "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; true")
		if strings.TrimSpace(r.Stdout) != "104857600" {
			t.Errorf("the limit inside:\n%v", r)
		}
	})
	t.Run("attach", func(t *testing.T) { testAttach(t, p) })
	t.Run("port-forward", func(t *testing.T) { testPortForward(t, p) })
	t.Run("one shim", func(t *testing.T) {
		if pids := shims(t); len(pids) != 1 {
			t.Errorf("a pod of several containers has the shims %v, want one", pids)
		}
	})
	engine.must(t, "stop", "--timeout", "10", id)
	if s := inspect(t, id); s.State != "CONTAINER_EXITED" || s.ExitCode != 3 {
		t.Errorf("stopped: %+v, want exit code 3", s)
	}
	p.remove(t)
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

func testStats(t *testing.T, p *pod, id string) {
	eventually(t, "crictl stats tells memory and processor time", func() (string, bool) {
		var out struct {
			Stats []struct {
				CPU struct {
					UsageCoreNanoSeconds struct{ Value string }
				}
				Memory struct {
					WorkingSetBytes struct{ Value string }
				}
			}
		}
		text := engine.must(t, "stats", "--output", "json", "--id", id)
		if err := json.Unmarshal([]byte(text), &out); err != nil || len(out.Stats) != 1 {
			return text, false
		}
		s := out.Stats[0]
		return text, s.CPU.UsageCoreNanoSeconds.Value > "0" && s.Memory.WorkingSetBytes.Value > "0"
	})
	text := engine.must(t, "statsp", "--output", "json", "--id", p.id)
	if !strings.Contains(text, "processCount") || !strings.Contains(text, "workingSetBytes") {
		t.Errorf("statsp: %s", text)
	}
}

func testAttach(t *testing.T, p *pod) {
	id := p.run(t, imageBusybox, object{"stdin": true, "stdin_once": true}, "sh", "-c", "read a; echo got $a; cat; echo end; exit 4")
	r := box.Run(t, harness.Cmd{Args: engine.crictl("attach", "--stdin", id), Stdin: "word\nmore\n", Timeout: time.Minute})
	if !strings.Contains(r.Stdout, "got word\nmore\nend\n") {
		t.Errorf("attach:\n%v", r)
	}
	if s := waitExited(t, id); s.ExitCode != 4 {
		t.Errorf("%+v, want exit code 4", s)
	}
}

func testPortForward(t *testing.T, p *pod) {
	p.run(t, imageNginx, nil)
	testForward(t, p)
}

// testForward fetches the page of a pod's web server.
func testForward(t *testing.T, p *pod) {
	port := freePort(t)
	forward := box.Start(t, harness.Cmd{Args: engine.crictl("port-forward", p.id, fmt.Sprintf("%d:80", port)), Timeout: time.Minute})
	defer forward.Stop(t)
	eventually(t, "the page comes through", func() (string, bool) {
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return err.Error(), false
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		return string(body), err == nil && bytes.Contains(body, []byte("Welcome"))
	})
}

// TestHardening: what the command line promises holds in a pod.
func TestHardening(t *testing.T) {
	p := runPod(t, handler, nil)
	sleeper := p.run(t, imageBusybox, nil, "sleep", "1000")
	t.Run("exec", func(t *testing.T) {
		harness.WantHardened(t, harness.ParseReport(t, engine.do(t, "exec", "--sync", sleeper, "probe", "report")), false)
	})
	for _, uid := range []int{0, 1000} {
		t.Run(fmt.Sprintf("first process, uid %d", uid), func(t *testing.T) {
			id := p.run(t, imageBusybox, object{"linux": object{"security_context": object{"run_as_user": object{"value": uid}}}}, "probe", "report")
			if s := waitExited(t, id); s.ExitCode != 0 {
				t.Fatalf("%+v", s)
			}
			harness.WantHardened(t, harness.ParseReport(t, engine.do(t, "logs", id)), uid != 0)
		})
	}
	t.Run("runc", func(t *testing.T) { // what would be refused anyway proves nothing
		p := runPod(t, "runc", nil)
		id := p.run(t, imageBusybox, nil, "sleep", "1000")
		r := harness.ParseReport(t, engine.do(t, "exec", "--sync", id, "probe", "report"))
		if r.Status["NoNewPrivs"] != "0" || r.Calls["ptrace attach to a child"] != "ok" {
			t.Errorf("NoNewPrivs %s, ptrace %s", r.Status["NoNewPrivs"], r.Calls["ptrace attach to a child"])
		}
	})
}

// TestBeyondTheProfile asks for what the handler does not grant: an error names the rule, and the other handler grants it.
func TestBeyondTheProfile(t *testing.T) {
	const node = 2
	for _, tc := range []struct {
		name           string
		pod, container object // security contexts
	}{
		{name: "host network", pod: object{"namespace_options": object{"network": node}}},
		{name: "host processes", pod: object{"namespace_options": object{"pid": node}}},
		{name: "host IPC", pod: object{"namespace_options": object{"ipc": node}}},
		{name: "added capability", container: object{"capabilities": object{"add_capabilities": []string{"SYS_ADMIN"}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, h := range []string{handler, handler + "-none"} {
				refused := tryPod(t, h, tc.pod, tc.container)
				if h == handler && (!strings.Contains(refused, "profile") || !strings.Contains(refused, "agent")) {
					t.Errorf("want a refusal that names the profile, got %q", refused)
				}
				if h != handler && refused != "" {
					t.Errorf("handler %s refuses it: %s", h, refused)
				}
			}
		})
	}
}

// tryPod runs a container with security contexts of its own and returns what refused it.
func tryPod(t *testing.T, h string, sandbox, context object) string {
	t.Helper()
	linux := object{"cgroup_parent": box.CgroupParent()}
	if sandbox != nil {
		linux["security_context"] = sandbox
	}
	p := newPod(t, object{"linux": linux})
	r := engine.do(t, "runp", "--runtime="+h, p.config)
	if r.Exit != 0 {
		return r.Stderr
	}
	p.id = strings.TrimSpace(r.Stdout)
	defer p.remove(t)
	security := object{}
	maps.Copy(security, context)
	if sandbox != nil {
		security["namespace_options"] = sandbox["namespace_options"]
	}
	r = engine.do(t, "create", "--with-pull", p.id, p.container(t, imageBusybox, object{"linux": object{"security_context": security}}, "true"), p.config)
	if r.Exit != 0 {
		return r.Stderr
	}
	if r = engine.do(t, "start", strings.TrimSpace(r.Stdout)); r.Exit != 0 {
		return r.Stderr
	}
	return ""
}

func TestOutOfMemory(t *testing.T) {
	p := runPod(t, handler, nil)
	id := p.run(t, imageBusybox, object{"linux": object{"resources": object{"memory_limit_in_bytes": 20 << 20, "memory_swap_limit_in_bytes": 20 << 20}}},
		"sh", "-c", "head -c 200m /dev/zero | tail >/dev/null; exit 9")
	if s := waitExited(t, id); s.Reason != "OOMKilled" {
		t.Errorf("%+v, want the reason OOMKilled", s)
	}
}

// TestKilledShim: CRI finds out that a pod's shim is gone, and nothing stays behind.
func TestKilledShim(t *testing.T) {
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	others := shims(t)
	p := runPod(t, handler, nil)
	id := p.run(t, imageBusybox, nil, "sleep", "1000")
	ours := slices.DeleteFunc(shims(t), func(pid int) bool { return slices.Contains(others, pid) })
	if len(ours) != 1 {
		t.Fatalf("shims: %v", ours)
	}
	if err := unix.Kill(ours[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if s := waitExited(t, id); s.ExitCode != 137 && s.ExitCode != 255 {
		t.Errorf("%+v", s)
	}
	p.remove(t)
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// TestKilledDaemon: pods outlive containerd, and it learns how containers ended meanwhile.
func TestKilledDaemon(t *testing.T) {
	for h, changes := range map[string]object{handler: nil, sandboxHandler: sandboxPod()} {
		t.Run(h, func(t *testing.T) {
			p := runPod(t, h, changes)
			context := object{"linux": object{"security_context": ownPIDs()}}
			lives := p.run(t, imageBusybox, context, "sleep", "1000")
			ends := p.run(t, imageBusybox, context, "sh", "-c", "sleep 1; exit 7")
			if err := unix.Kill(engine.containerd.Pid(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			time.Sleep(1500 * time.Millisecond)
			if err := engine.startContainerd(); err != nil {
				t.Fatal(err)
			}
			if s := waitExited(t, ends); s.ExitCode != 7 {
				t.Errorf("the one that has ended: %+v", s)
			}
			if s := inspect(t, lives); s.State != "CONTAINER_RUNNING" {
				t.Errorf("the one that lives: %+v", s)
			}
			if got := engine.must(t, "exec", lives, "echo", "in"); got != "in" {
				t.Errorf("exec: %q", got)
			}
			if got := engine.must(t, "inspectp", "--output", "go-template", "--template", "{{.status.state}}", p.id); got != "SANDBOX_READY" {
				t.Errorf("the pod is %s", got)
			}
		})
	}
}

// TestDocs runs the commands of docs/CONTAINERD.md and looks at its RuntimeClass.
func TestDocs(t *testing.T) {
	commands, err := harness.DocCommands("CONTAINERD.md", "crictl")
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range commands {
		p := newPod(t, nil)
		r := box.Run(t, harness.Cmd{Args: engine.crictl(words[1:]...), Dir: p.dir})
		if r.Exit != 0 {
			t.Errorf("%v", r)
			continue
		}
		p.id = strings.TrimSpace(r.Stdout)
		p.remove(t)
	}
	blocks, err := harness.DocBlocks("CONTAINERD.md", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	var class struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Handler    string
	}
	d := yaml.NewDecoder(strings.NewReader(blocks[0]))
	if err := d.Decode(&class); err != nil || class.Kind != "RuntimeClass" || class.APIVersion != "node.k8s.io/v1" || class.Handler != handler {
		t.Errorf("RuntimeClass: %+v, %v", class, err)
	}
	if info := engine.must(t, "info"); !strings.Contains(info, fmt.Sprintf("%q: {", class.Handler)) {
		t.Errorf("containerd has no handler %q", class.Handler)
	}
}
