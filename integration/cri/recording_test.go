package cri

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// releaseRecording is the administrator's word that a name may be recorded.
func releaseRecording(t *testing.T, name string) {
	t.Helper()
	err := errors.Join(os.MkdirAll("/etc/agentsafe", 0o755), os.WriteFile("/etc/agentsafe/config.toml", []byte("[record]\nnames = [\""+name+"\"]\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, filepath.Join(filepath.Dir(shimPath()), "agentsafectl"), "config", "apply")
	t.Cleanup(func() {
		if err := os.RemoveAll("/etc/agentsafe"); err != nil {
			t.Error(err)
		}
	})
}

// TestRecording records a pod by its annotation, which all of its containers get, with an exec; and one container of
// another pod by its own. Names that nobody has released are refused.
func TestRecording(t *testing.T) {
	releaseRecording(t, "pod-tests")
	wanted := object{"agentsafe.dev/record": "pod-tests"}
	p := runPod(t, handler, object{"annotations": wanted})
	first := p.run(t, imageBusybox, nil, "sh", "-c", "echo x > /tmp/by-pod; exec sleep 1000")
	if r := engine.do(t, "exec", "--sync", first, "sh", "-c", "echo x > /tmp/by-exec"); r.Exit != 0 {
		t.Errorf("exec in a recorded container:\n%v", r)
	}
	other := runPod(t, handler, nil)
	second := other.run(t, imageBusybox, object{"annotations": wanted}, "sh", "-c", "echo x > /tmp/by-container; exit 5")
	if s := waitExited(t, second); s.ExitCode != 5 {
		t.Errorf("a recorded container: %+v", s)
	}
	quiet := other.run(t, imageBusybox, nil, "sh", "-c", "echo x > /tmp/unrecorded")
	waitExited(t, quiet)
	p.remove(t)
	other.remove(t)

	words := []string{"/tmp/by-pod", "/tmp/by-exec", "/tmp/by-container", "sleep 1000"}
	text := eventually(t, "the recording", func() (string, bool) {
		data, err := os.ReadFile("/var/lib/agentsafe/recordings/pod-tests.json")
		for _, w := range words {
			if err != nil || !strings.Contains(string(data), w) {
				return "", false
			}
		}
		return string(data), true
	})
	if strings.Contains(text, "unrecorded") {
		t.Errorf("a container that nobody wanted recorded is in it:\n%s", text)
	}
	third := runPod(t, handler, nil)
	id := third.container(t, imageBusybox, object{"annotations": object{"agentsafe.dev/record": "else"}}, "true")
	r := engine.do(t, "create", "--with-pull", third.id, id, third.config)
	if r.Exit == 0 { // the runtime makes the container when it is started
		r = engine.do(t, "start", strings.TrimSpace(r.Stdout))
	}
	if r.Exit == 0 || !strings.Contains(r.Stderr, "has not released a recording of this name") {
		t.Errorf("a name that nobody has released:\n%v", r)
	}
}
