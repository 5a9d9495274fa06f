package limits

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestOutputBytes: each stream ends with one line, after exactly so many bytes; the task learns of it or not, by profile.
func TestOutputBytes(t *testing.T) {
	const most = 4 << 10
	for _, d := range doors(t) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			// Binary, without a line feed, and far more than any buffer.
			r := d.run(t, "words", "head -c 50000000 /dev/zero; echo $? >&2; echo more >&2")
			text, line, _ := strings.Cut(r.Stdout, "\n")
			if len(text) != most || strings.Trim(text, "\x00") != "" || !strings.Contains(line, "agentsafe: standard output ends here") {
				t.Errorf("want %d bytes and a line: %d, %q", most, len(text), line)
			}
			// The task has got EPIPE, or SIGPIPE.
			if !strings.Contains(r.Stderr, "more") || strings.HasPrefix(r.Stderr, "0\n") {
				t.Errorf("want the task to go on, and head to fail:\n%v", r)
			}
			r = d.run(t, "drop", "head -c 50000000 /dev/zero; echo $? >&2; exit 5")
			text, line, _ = strings.Cut(r.Stdout, "\n")
			if len(text) != most || !strings.Contains(line, "ends here") || !strings.Contains(r.Stderr, "0") || r.Exit != 5 {
				t.Errorf("want %d bytes, a line, and head to succeed: %d, %q, %v %d", most, len(text), line, r.Stderr, r.Exit)
			}
			r = d.run(t, "words", "echo hello; echo world >&2; exit 3")
			if r.Stdout != "hello\n" || !strings.Contains(r.Stderr, "world") || r.Exit != 3 {
				t.Errorf("a short output:\n%v", r)
			}
		})
	}
}

// TestOutputBytes_Exec: an exec's streams are counted by themselves, and whoever waits for it gets all of them.
func TestOutputBytes_Exec(t *testing.T) {
	d := box.Bare(t, harness.Peer{Name: "words", Path: wrapper("words")})
	bundle := d.Up(t, nil)
	for range 2 {
		r := d.Do(t, "exec", bundle.ID, "sh", "-c", "head -c 5000 /dev/zero; echo $? >&2")
		if text, line, _ := strings.Cut(r.Stdout, "\n"); len(text) != 4096 || !strings.Contains(line, "ends here") {
			t.Errorf("%d bytes, %q", len(text), line)
		}
	}
	if r := d.Do(t, "exec", bundle.ID, "sh", "-c", "echo $(stat -c %u -L /proc/self/fd/1); echo again >/dev/stdout; echo err >/dev/stderr; exit 4"); r.Exit != 4 ||
		r.Stdout != "0\nagain\n" || r.Stderr != "err\n" {
		t.Errorf("the streams can't be opened again:\n%v", r)
	}
	if r := d.Do(t, "exec", "--tty", bundle.ID, "true"); r.Exit == 0 || !strings.Contains(r.Stderr, "limits.outputBytes") {
		t.Errorf("a terminal's output is not counted, and nobody says so:\n%v", r)
	}
	var s struct {
		Status string
		End    struct{ OutputsCut int }
	}
	if err := json.Unmarshal([]byte(d.Must(t, "state", bundle.ID)), &s); err != nil || s.End.OutputsCut != 2 || s.Status != "running" {
		t.Errorf("the state, while it runs: %+v, %v", s, err)
	}
	d.Must(t, "delete", "--force", bundle.ID)
	if got := types(t, bundle.ID); strings.Count(got, "limit") != 2 {
		t.Errorf("records %s: want two streams that were ended", got)
	}
}

// TestOutputBytes_Terminal: a container with a terminal is refused, with the reason.
func TestOutputBytes_Terminal(t *testing.T) {
	reloaded.Do(func() { reloadDocker(t) })
	r := docker.Do(t, "run", "--rm", "--tty", "--network", "none", "--runtime", "words", image, "true")
	if r.Exit == 0 || !strings.Contains(r.Stdout+r.Stderr, "limits.outputBytes") {
		t.Errorf("want a refusal that names the limit:\n%v", r)
	}
}
