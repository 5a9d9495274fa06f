package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestUI drives agentsafectl ui on a terminal: it reads a diff, takes a transaction back, applies it again, and promotes.
func TestUI(t *testing.T) {
	d := bare(t)
	dir := folder(t, map[string]string{"a": "old line\n"})
	id := up(t, d, dir, nil)
	exec(t, d, id, "echo 'new line' >>a; printf 'x\\033[2Jy' >b")
	exec(t, d, id, "rm a")
	r := box.Start(t, harness.Cmd{Args: []string{control(t), "ui", id}, TTY: true, Env: []string{"TERM=xterm-256color", "PATH=" + os.Getenv("PATH")}})
	press := func(keys, want string) {
		t.Helper()
		seen := len(r.Output())
		if _, err := r.Terminal().WriteString(keys); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if out := r.Output(); strings.Contains(out[min(seen, len(out)):], want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("after %q the terminal does not show %q:\n%q", keys, want, r.Output()[min(seen, len(r.Output())):])
			}
		}
	}
	press("", "everything, against the host")
	press("j\r", "old line")
	press("q", "undo/redo")
	press("u", "transaction 2 is undone")
	press("\x1b[B\r", `x\x1b[2Jy`)
	press("q", "undo/redo")
	press("p", "[x] ")
	press("P", "write 2 paths to the host?")
	press("y", "2 paths written")
	press("q", "")
	if res := r.Wait(t); res.Exit != 0 {
		t.Error(res)
	}
	for name, want := range map[string]string{"a": "old line\nnew line\n", "b": "x\x1b[2Jy"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != want {
			t.Errorf("%s on the host: %q %v", name, data, err)
		}
	}
	if r := ctl(t, "ui", id); r.Exit == 0 || !strings.Contains(r.Stderr, "no terminal") {
		t.Errorf("without a terminal: %v", r)
	}
}
