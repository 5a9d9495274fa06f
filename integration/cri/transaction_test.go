package cri

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestTransaction has the kubelet's two ways to run a command in a container, waiting for its output and over a stream,
// work in transactions: each is in the log with its exit status, can be taken back, and the host's folder changes by
// promotion alone. A terminal works on the base.
func TestTransaction(t *testing.T) {
	bindData(t, "layers")
	dir := box.TempDir(t)
	for name, text := range map[string]string{"f": "one\n", "keep/k": "k"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctl := func(args ...string) string {
		return box.MustRun(t, append([]string{filepath.Join(filepath.Dir(shimPath()), "agentsafectl")}, args...)...)
	}
	p := runPod(t, handler, nil)
	id := p.run(t, imageBusybox, object{
		"annotations": object{"agentsafe.dev/workspace": "overlay", "agentsafe.dev/transaction": "auto"}, "working_dir": "/job",
		"mounts": []object{{"container_path": "/job", "host_path": dir}},
	}, "sleep", "1000")
	exec := func(flag, script string) harness.Result {
		args := []string{"exec", id, "sh", "-c", script}
		if flag != "" {
			args = append([]string{"exec", flag}, args[1:]...)
		}
		return engine.do(t, args...)
	}
	for i, s := range []struct {
		flag, script string
		fails        bool
	}{
		{"--sync", "echo two >>f; mkdir src; echo code >src/new", false},
		{"", "echo three >>f; rm -r src; exit 3", true},
		{"--sync", "rm -rf keep; exit 4", true},
	} {
		if r := exec(s.flag, s.script); (r.Exit != 0) != s.fails {
			t.Fatalf("command %d: %v", i+1, r)
		}
	}
	ctl("undo", id+"@3")
	if r := box.Run(t, harness.Cmd{Args: engine.crictl("exec", "--tty", "--interactive", id, "sh", "-c", "echo typed >base"), TTY: true}); r.Exit != 0 {
		t.Errorf("a terminal: %v", r)
	}
	if r := exec("", "cat f base keep/k; ls"); r.Exit != 0 || r.Stdout != "one\ntwo\nthree\ntyped\nkbase\nf\nkeep\n" {
		t.Errorf("in the container: %v", r)
	}
	var log []struct {
		N       int
		Exit    *int
		Status  string
		Changes int
	}
	if err := json.Unmarshal([]byte(ctl("log", "--json", id)), &log); err != nil {
		t.Fatal(err)
	}
	if len(log) != 4 {
		t.Fatalf("log: %+v", log)
	}
	for i, want := range []struct {
		exit   int
		status string
	}{{0, "committed"}, {3, "committed"}, {4, "undone"}, {0, "committed"}} {
		if tx := log[i]; tx.Exit == nil || *tx.Exit != want.exit || tx.Status != want.status {
			t.Errorf("transaction %d: %+v, want exit %d, %s", i+1, tx, want.exit, want.status)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(data) != "one\n" {
		t.Errorf("the host's file: %q %v", data, err)
	}
	p.remove(t)
	ctl("promote", id)
	if got := strings.Join(strings.Fields(box.MustRun(t, "sh", "-c", "cd "+dir+"; ls; cat f base keep/k")), " "); got != "base f keep one two three typed k" {
		t.Errorf("promoted: %q", got)
	}
	ctl("layers", "rm", id)
}
