package oci

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestOldSeccompFilter: a filter written before a system call existed refuses it with EPERM, and without no_new_privs it
// is installed before the runtime has finished. What the runtime needs for itself must not depend on such a filter.
func TestOldSeccompFilter(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := plain(t, p)
		return d.RunSpec(t, func(s *specs.Spec) {
			s.Process.Args = []string{"sh", "-c", "grep Seccomp: /proc/self/status"}
			s.Linux.Seccomp = &specs.LinuxSeccomp{
				DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64},
				Syscalls: []specs.LinuxSyscall{{
					Names: []string{"faccessat2", "close_range", "openat2", "clone3"}, Action: specs.ActErrno,
				}},
			}
		})
	}, harness.All(harness.Exits(0), harness.Prints(`Seccomp:\s*2`)))
}

// plain drives a runtime as an engine that wants no policy beyond its own: agentsafe under the profile none.
func plain(t *testing.T, p harness.Peer) *harness.Bare {
	t.Helper()
	d := box.Bare(t, p)
	if p.Name == "agentsafe" {
		d.Global = []string{"--profile", "none"}
	}
	return d
}

// TestIgnoredSignals: a container does not inherit what nohup, or a shell for what it runs in the background, has ignored.
func TestIgnoredSignals(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := plain(t, p)
		b := box.Bundle(t, harness.Sh("sleep 1000"))
		t.Cleanup(func() { d.Do(t, "delete", "--force", b.ID) })
		ignoring := func(args ...string) harness.Result {
			line := append([]string{"sh", "-c", `trap "" HUP INT; exec "$@"`, "sh"}, d.Args(args...)...)
			return box.Run(t, harness.Cmd{Args: line})
		}
		for _, args := range [][]string{{"create", "--bundle", b.Dir, b.ID}, {"start", b.ID}} {
			if r := ignoring(args...); r.Exit != 0 {
				t.Fatal(r)
			}
		}
		return ignoring("exec", b.ID, "sh", "-c", "grep -h SigIgn /proc/1/status /proc/self/status")
	}, exact(0, "^(SigIgn:\t[0-9a-f]{15}[048c]\n){2}$")) // others may be ignored: SIGQUIT by busybox's shell, more by who runs this
}
