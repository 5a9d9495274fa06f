package hardening

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestPrivileged: a root that has every capability can give them all; under the profile none containers get them as under
// runc. What the default profile says to such a wish is in TestBeyondTheProfile.
func TestPrivileged(t *testing.T) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`CapBnd:\t([0-9a-f]+)`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("no CapBnd in %s", status)
	}
	if set, err := strconv.ParseUint(string(m[1]), 16, 64); err != nil || set&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		t.Skipf("probe CAP_SYS_RESOURCE: this machine's root lacks it, so that no runtime can give all capabilities: %s, %v", m[1], err)
	}
	const script = `grep -E "^(Cap|NoNewPrivs|Seccomp:)" /proc/self/status; mkdir /m; mount -t tmpfs none /m && echo mounted; ls /dev | sort | tr "\n" " "; ` +
		`test -w /proc/sysrq-trigger && echo unmasked; grep -o " /sys rw\| /sys/fs/cgroup r[ow]" /proc/self/mountinfo; exit 7`
	for _, tc := range []struct {
		name string
		do   func(runtime harness.Peer) harness.Result
	}{
		{"--privileged", func(p harness.Peer) harness.Result {
			return engine.Do(t, "run", "--rm", "--runtime", p.Name, "--privileged", image, "sh", "-c", script)
		}},
		{"--cap-add ALL", func(p harness.Peer) harness.Result {
			return engine.Do(t, "run", "--rm", "--runtime", p.Name, "--cap-add", "ALL", image, "sh", "-c", script)
		}},
		{"exec --privileged", func(p harness.Peer) harness.Result {
			return engine.Do(t, "exec", "--privileged", engine.Up(t, p, image, "sleep", "1000"), "sh", "-c", script)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want, got := tc.do(harness.Peer{Name: "runc"}), tc.do(harness.Peer{Name: "agentsafe-none"})
			if want.Exit != 7 || !regexp.MustCompile(`mounted|[Pp]ermission denied`).MatchString(want.Stdout+want.Stderr) {
				t.Errorf("under runc:\n%v", want)
			}
			if got.Exit != want.Exit || got.Stdout != want.Stdout {
				t.Errorf("not as under runc:\n--- runc\n%v\n--- none\n%v", want, got)
			}
		})
	}
}
