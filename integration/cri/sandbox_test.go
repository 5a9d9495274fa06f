package cri

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// sandboxHandler is the handler whose pods are made by our shim through the sandbox API, without a pause container.
const sandboxHandler = "agentsafe-sandbox"

// ownPIDs are the namespace options of Kubernetes' default: each container has its own processes.
func ownPIDs() object {
	const container = 1
	return object{"namespace_options": object{"pid": container}}
}

func sandboxPod() object {
	return object{
		"hostname":   "a-pod",
		"dns_config": object{"servers": []string{"192.0.2.53"}, "searches": []string{"example.test"}, "options": []string{"ndots:3"}},
		"linux":      object{"cgroup_parent": box.CgroupParent(), "security_context": ownPIDs(), "sysctls": object{"kernel.shm_rmid_forced": "1"}},
	}
}

func TestSandbox(t *testing.T) {
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	p := runPod(t, sandboxHandler, sandboxPod())
	context := object{"linux": object{"security_context": ownPIDs()}}
	id := p.run(t, imageBusybox, context, "sh", "-c", "echo out; trap 'exit 3' TERM; while :; do sleep 0.1; done")
	other := p.run(t, imageBusybox, context, "sleep", "1000")
	t.Run("what containers share", func(t *testing.T) {
		script := "hostname; cat /etc/hostname /etc/resolv.conf /proc/sys/kernel/shm_rmid_forced; grep -c localhost /etc/hosts >/dev/null && echo hosts"
		want := "a-pod\na-pod\nsearch example.test\nnameserver 192.0.2.53\noptions ndots:3\n1\nhosts\n"
		if r := engine.do(t, "exec", id, "sh", "-c", script); r.Stdout != want {
			t.Errorf("want %q\n%v", want, r)
		}
		engine.must(t, "exec", id, "sh", "-c", "echo shared >/dev/shm/file")
		if got := engine.must(t, "exec", other, "cat", "/dev/shm/file"); got != "shared" {
			t.Errorf("shared memory: %q", got)
		}
		for _, kind := range []string{"net", "ipc", "uts"} {
			a, b := engine.must(t, "exec", id, "readlink", "/proc/self/ns/"+kind), engine.must(t, "exec", other, "readlink", "/proc/self/ns/"+kind)
			if a != b || a == "" {
				t.Errorf("namespace %s: %q and %q", kind, a, b)
			}
		}
	})
	t.Run("hardening", func(t *testing.T) {
		harness.WantHardened(t, harness.ParseReport(t, engine.do(t, "exec", "--sync", id, "probe", "report")), false)
	})
	t.Run("stats", func(t *testing.T) { testStats(t, p, id) })
	t.Run("port-forward", func(t *testing.T) {
		p.run(t, imageNginx, context)
		testForward(t, p)
	})
	t.Run("one shim, no pause", func(t *testing.T) {
		if pids := shims(t); len(pids) != 1 {
			t.Errorf("shims %v, want one", pids)
		}
		if got := engine.must(t, "inspectp", "--output", "go-template", "--template", "{{.status.state}}", p.id); got != "SANDBOX_READY" {
			t.Errorf("state %s", got)
		}
	})
	engine.must(t, "stop", "--timeout", "10", id)
	if s := inspect(t, id); s.ExitCode != 3 {
		t.Errorf("%+v, want exit code 3", s)
	}
	p.remove(t)
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// TestSandboxProfile: the handler's options count for the sandbox as well.
func TestSandboxProfile(t *testing.T) {
	const node = 2
	host := object{"linux": object{"cgroup_parent": box.CgroupParent(), "security_context": object{"namespace_options": object{"pid": 1, "network": node}}}}
	p := newPod(t, host)
	r := engine.do(t, "runp", "--runtime="+sandboxHandler, p.config)
	if r.Exit == 0 || !strings.Contains(r.Stderr, "network") || !strings.Contains(r.Stderr, "profile") {
		t.Errorf("host network:\n%v", r)
	}
	runPod(t, sandboxHandler+"-none", host)
	p = newPod(t, nil) // crictl's default is that containers share their processes
	if r := engine.do(t, "runp", "--runtime="+sandboxHandler, p.config); r.Exit == 0 || !strings.Contains(r.Stderr, "podsandbox") {
		t.Errorf("shared processes:\n%v", r)
	}
}

func TestSandboxKilledShim(t *testing.T) {
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	p := runPod(t, sandboxHandler, sandboxPod())
	id := p.run(t, imageBusybox, object{"linux": object{"security_context": ownPIDs()}}, "sleep", "1000")
	pids := shims(t)
	if len(pids) != 1 {
		t.Fatalf("shims: %v", pids)
	}
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitExited(t, id)
	p.remove(t)
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}
