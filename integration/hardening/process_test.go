package hardening

import (
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func TestFromInside(t *testing.T) {
	runc, agentsafe := harness.Peers(t)
	for way, r := range reports(t, agentsafe) {
		t.Run(way, func(t *testing.T) { harness.WantHardened(t, r, strings.Contains(way, "by a user")) })
	}
	// What would be refused anyway proves nothing: under runc these go through.
	t.Run("runc", func(t *testing.T) {
		r := harness.ParseReport(t, box.Bare(t, runc).RunSpec(t, harness.Sh("exec probe report")))
		if r.Status["NoNewPrivs"] != "0" || r.Status["Seccomp"] != "0" {
			t.Errorf("NoNewPrivs %s, Seccomp %s", r.Status["NoNewPrivs"], r.Status["Seccomp"])
		}
		for call, want := range map[string]string{
			"io_uring_setup": "EFAULT", "ptrace attach to a child": "ok", "unshare user namespace": "ok", "clone user namespace": "ok",
			"ioctl TIOCSTI": "EBADF", "socket packet": "ok", "socket mptcp": "ok", "socket raw": "ok", "keyctl": "EINVAL|ENOSYS|EOPNOTSUPP", "fsopen": "EFAULT|EPERM", "clone3": "EFAULT",
		} {
			if !regexp.MustCompile("^(" + want + ")$").MatchString(r.Calls[call]) {
				t.Errorf("%s gives %q without a filter, want %s", call, r.Calls[call], want)
			}
		}
	})
}

// TestBeyondTheProfile asks for what the profile does not grant: creation fails and says which rule and what allows it.
func TestBeyondTheProfile(t *testing.T) {
	dir := box.TempDir(t)
	socket, renamed := filepath.Join(dir, "docker.sock"), filepath.Join(dir, "engine")
	for _, path := range []string{socket, renamed} {
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
	}
	for _, tc := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"privileged", []string{"--privileged"}, "(?i)capabilit|privileged|device"},
		{"capability", []string{"--cap-add", "SYS_ADMIN"}, "CAP_SYS_ADMIN"},
		{"network administration", []string{"--cap-add", "NET_ADMIN"}, "CAP_NET_ADMIN"},
		{"host network", []string{"--network", "host"}, "(?i)network"},
		{"host processes", []string{"--pid", "host"}, "(?i)pid"},
		{"host IPC", []string{"--ipc", "host"}, "(?i)ipc"},
		{"host UTS", []string{"--uts", "host"}, "(?i)uts"},
		{"root of the host", []string{"-v", "/:/host"}, "mount|/host"},
		{"root of the host, read only", []string{"-v", "/:/host:ro"}, "mount|/host"},
		{"/etc of the host", []string{"-v", "/etc:/host"}, "mount|/etc"},
		{"/proc of the host", []string{"-v", "/proc:/host"}, "mount|/proc"},
		{"/sys of the host", []string{"-v", "/sys:/host"}, "mount|/sys"},
		{"/run of the host", []string{"-v", "/var/run:/host"}, "mount|/run"},
		{"an engine's socket", []string{"-v", socket + ":/any/name"}, "socket"},
		{"an engine's socket of another name", []string{"-v", renamed + ":/var/run/docker.sock"}, "socket"},
		{"an engine's socket, read only", []string{"-v", socket + ":/var/run/docker.sock:ro"}, "socket"},
		{"a device of the host", []string{"--device", "/dev/loop-control"}, "(?i)device"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			runc, agentsafe := harness.Peers(t)
			args := func(p harness.Peer) []string {
				return append(append([]string{"run", "--rm", "--runtime", p.Name}, tc.flags...), image, "true")
			}
			if tc.name != "a device of the host" && tc.name != "privileged" { // these the test's own machine may not have
				if r := engine.Do(t, args(runc)...); r.Exit != 0 {
					t.Errorf("runc refuses it too, which proves nothing:\n%v", r)
				}
			}
			r := engine.Do(t, args(agentsafe)...)
			if r.Exit == 0 || !regexp.MustCompile(tc.want).MatchString(r.Stderr) || !strings.Contains(r.Stderr, "profile") {
				t.Errorf("want a refusal that names %q and the profile:\n%v", tc.want, r)
			}
		})
	}
	t.Run("seccomp=unconfined stays confined", func(t *testing.T) {
		_, agentsafe := harness.Peers(t)
		r := engine.Do(t, "run", "--rm", "--runtime", agentsafe.Name, "--security-opt", "seccomp=unconfined", image, "probe", "report")
		if r.Exit != 0 {
			return // refused: as good
		}
		if got := harness.ParseReport(t, r); got.Status["Seccomp"] != "2" || got.Calls["mount"] != "EPERM" {
			t.Errorf("Seccomp %s, mount %s", got.Status["Seccomp"], got.Calls["mount"])
		}
	})
	t.Run("a privileged exec", func(t *testing.T) {
		_, agentsafe := harness.Peers(t)
		name := engine.Up(t, agentsafe, image, "sleep", "1000")
		r := engine.Do(t, "exec", "--privileged", name, "grep", "CapEff", "/proc/self/status")
		if r.Exit == 0 && !strings.Contains(r.Stdout, harness.AgentCapabilities) {
			t.Errorf("more than the profile's capabilities:\n%v", r)
		}
	})
}
