package clock

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// shift moves the machine's clock of the day.
func shift(t *testing.T, by time.Duration) {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &ts); err != nil {
		t.Fatal(err)
	}
	ts = unix.NsecToTimespec(ts.Nano() + by.Nanoseconds())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		t.Fatalf("set the clock: %v", err)
	}
}

// under is the runtime with a profile.
func under(t *testing.T, profile string) *harness.Bare {
	d := box.Bare(t, harness.Peer{Name: profile, Path: program("agentsafe")})
	d.Global = append(d.Global, "--profile", profile)
	return d
}

// TestJumps: time limits of a container and of an exec end what they should while the clock is set back by a day, and end
// nothing early when it is set forward by two; the logs stay whole, and say why.
func TestJumps(t *testing.T) {
	if os.Getenv("AGENTSAFE_TEST_MACHINE") != "disposable" {
		t.Skip("probe AGENTSAFE_TEST_MACHINE: this machine's clock is everybody's (make test-long runs it in a virtual one)")
	}
	const day = 24 * time.Hour
	if r := box.Run(t, harness.Cmd{Args: []string{program("agentsafectl"), "audit", "keygen"}}); r.Exit != 0 {
		t.Fatal(r)
	}
	short, long := under(t, "short"), under(t, "long")
	a, b := short.Up(t, nil), long.Up(t, nil)
	began := time.Now() // with a monotonic reading, which is what time.Since takes
	shift(t, -day)
	net := -day
	defer func() { shift(t, -net) }()
	if r := long.Do(t, "exec", b.ID, "sh", "-c", "trap '' TERM; while :; do sleep 1; done"); r.Exit != 137 {
		t.Errorf("an exec's limit of 3 s does not hold when the clock is set back:\n%v", r)
	}
	short.WaitStatus(t, a.ID, "stopped")
	// The machine is emulated and slow: two minutes are not a day.
	if took := time.Since(began); took < 3*time.Second || took > 2*time.Minute {
		t.Errorf("the limit of 4 s has ended the container after %v", took)
	}
	if s := short.Must(t, "state", a.ID); !strings.Contains(s, `"reason": "wall-clock"`) {
		t.Errorf("state does not tell why:\n%s", s)
	}
	shift(t, 2*day)
	net = day
	if r := long.Do(t, "exec", b.ID, "sh", "-c", "sleep 1; echo still here"); r.Exit != 0 || !strings.Contains(r.Stdout, "still here") {
		t.Errorf("an exec ends early when the clock is set forward:\n%v", r)
	}
	if s := long.State(t, b.ID); s.Status != "running" {
		t.Errorf("the container with half an hour is %s", s.Status)
	}
	short.Must(t, "delete", a.ID)
	long.Must(t, "delete", "--force", b.ID)
	for _, id := range []string{a.ID, b.ID} {
		r := box.Run(t, harness.Cmd{Args: []string{program("agentsafectl"), "audit", "verify", "--json", id}})
		var v struct {
			OK, Closed bool
			Signature  string
		}
		if err := json.Unmarshal([]byte(r.Stdout), &v); err != nil || !v.OK || !v.Closed || v.Signature != "good" {
			t.Errorf("verify %s: %v\n%v", id, err, r)
		}
		if r := box.Run(t, harness.Cmd{Args: []string{program("agentsafectl"), "report", id}}); r.Exit != 0 {
			t.Errorf("report %s:\n%v", id, r)
		}
	}
}
