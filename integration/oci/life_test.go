package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func exact(code int, prints string) harness.Comparison {
	return harness.All(harness.Same, harness.Exits(code), harness.Prints(prints))
}

// result is what a test of several steps has seen, as something to compare.
func result(lines ...any) harness.Result {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintln(&b, l)
	}
	return harness.Result{Stdout: b.String()}
}

// fails wants an error that matches what callers look for, and returns only that it was one.
func fails(t *testing.T, r harness.Result, want string) string {
	t.Helper()
	if r.Exit == 0 || !strings.Contains(r.Stderr, want) {
		t.Errorf("want an error that says %q:\n%v", want, r)
	}
	return "error"
}

func TestLifeCycle(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		bundle := box.Bundle(t, func(s *specs.Spec) {
			s.Process.Args = []string{"sleep", "1000"}
			s.Annotations = map[string]string{"org.example": "kept"}
		})
		pidFile := filepath.Join(bundle.Dir, "pid")
		d.Must(t, "create", "--bundle", bundle.Dir, "--pid-file", pidFile, bundle.ID)
		created := d.State(t, bundle.ID)
		pid, err := os.ReadFile(pidFile)
		if err != nil || string(pid) != strconv.Itoa(created.Pid) {
			t.Errorf("pid file has %q (%v), state says %d", pid, err, created.Pid)
		}
		if created.Bundle != bundle.Dir || created.Rootfs != bundle.Rootfs() || created.Annotations["org.example"] != "kept" ||
			p.Name == "agentsafe" && (created.Annotations["dev.agentsafe.profile"] != "agent" || len(created.Annotations["dev.agentsafe.policy"]) != 64) {
			t.Errorf("state %+v", created)
		}
		d.Must(t, "start", bundle.ID)
		running := d.State(t, bundle.ID)
		again := fails(t, d.Do(t, "start", bundle.ID), "")
		twice := fails(t, d.Do(t, "create", "--bundle", bundle.Dir, bundle.ID), "exist")
		live := fails(t, d.Do(t, "delete", bundle.ID), "")
		d.Must(t, "kill", bundle.ID, "KILL")
		d.WaitStatus(t, bundle.ID, "stopped")
		stopped := d.State(t, bundle.ID)
		dead := fails(t, d.Do(t, "kill", bundle.ID, "TERM"), "container not running")
		d.Must(t, "delete", bundle.ID)
		gone := fails(t, d.Do(t, "state", bundle.ID), "does not exist")
		return result(created.Status, running.Status, running.Pid == created.Pid, stopped.Status, stopped.Pid, again, twice, live, dead, gone)
	}, exact(0, "^created\nrunning\ntrue\nstopped\n0\n"))
}

func TestUnknownContainer(t *testing.T) {
	for _, args := range [][]string{
		{"state", "ID"},
		{"start", "ID"},
		{"kill", "ID", "TERM"},
		{"delete", "ID"},
		{"exec", "ID", "true"},
		{"ps", "ID"},
		{"pause", "ID"},
		{"resume", "ID"},
		{"update", "--memory", "100000000", "ID"},
		{"events", "--stats", "ID"},
	} {
		t.Run(args[0], func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				return box.Bare(t, p).Do(t, args...)
			}, harness.Same, harness.ErrorHas("does not exist"))
		})
	}
	t.Run("delete by force", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			return box.Bare(t, p).Do(t, "delete", "--force", "ID")
		}, exact(0, "^$"))
	})
}

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name    string
		script  string
		compare harness.Comparison
	}{
		{"output and exit code", "echo out; echo err >&2; exit 3", harness.All(exact(3, "^out\n$"), harness.ErrorHas("err"))},
		{"killed by a signal", "sh -c 'kill -9 $$'; exit $?", exact(137, "")},
		{"kills itself as init", "kill -TERM $$; exit 2", exact(2, "")},
		{"leaves children behind", "sleep 1000 & exit 0", exact(0, "")},
		{"environment", "env | grep -v ^AGENTSAFE_ | sort; pwd", exact(0, "(?s)HOME=/root.*PATH=.*/\n$")},
		{"descriptors", "ls /proc/self/fd | wc -l", exact(0, "^4\n$")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				return box.Bare(t, p).RunSpec(t, harness.Sh(tc.script))
			}, tc.compare)
		})
	}
	t.Run("nothing left", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d := box.Bare(t, p)
			d.RunSpec(t, nil)
			return d.Do(t, "list", "-q")
		}, exact(0, "^$"))
	})
	t.Run("detached", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d := box.Bare(t, p)
			bundle := box.Bundle(t, harness.Sh("sleep 1000"))
			r := d.Do(t, "run", "--detach", "--bundle", bundle.Dir, bundle.ID)
			return result(r.Exit, d.State(t, bundle.ID).Status)
		}, exact(0, "^0\nrunning\n$"))
	})
	t.Run("kept", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d := box.Bare(t, p)
			bundle := box.Bundle(t, harness.Sh("exit 4"))
			r := d.Do(t, "run", "--keep", "--bundle", bundle.Dir, bundle.ID)
			return result(r.Exit, d.State(t, bundle.ID).Status)
		}, exact(0, "^4\nstopped\n$"))
	})
	t.Run("a signal to the runtime reaches the process", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d := box.Bare(t, p)
			bundle := box.Bundle(t, harness.Sh(`trap "echo term; exit 9" TERM; echo up; while :; do sleep 0.02; done`))
			run := box.Start(t, harness.Cmd{Args: d.Args("run", "--bundle", bundle.Dir, bundle.ID)})
			waitFor(t, func() bool { return strings.Contains(run.Output(), "up") })
			if err := unix.Kill(run.Pid(), unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			return run.Wait(t)
		}, exact(9, "^up\nterm\n$"))
	})
	t.Run("terminal", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d := box.Bare(t, p)
			bundle := box.Bundle(t, func(s *specs.Spec) {
				s.Process.Terminal = true
				s.Process.Args = []string{"sh", "-c", "tty; stty size; read a; echo got $a; exit 5"}
			})
			return box.Run(t, harness.Cmd{Args: d.Args("run", "--bundle", bundle.Dir, bundle.ID), TTY: true, Stdin: "word\n"})
		}, harness.SameExit, harness.Exits(5), harness.Prints(`(?s)/dev/pts/0.*24 80.*got word`))
	})
}

func TestListAndPs(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		empty := d.Must(t, "list", "--format", "json")
		a, b := d.Up(t, nil), d.Create(t, nil)
		var list []harness.State
		if err := json.Unmarshal([]byte(d.Must(t, "list", "--format", "json")), &list); err != nil {
			t.Fatal(err)
		}
		seen := map[string]string{}
		for _, s := range list {
			seen[s.ID] = s.Status
			if s.Bundle == "" || s.Created.IsZero() || s.Owner != "root" || s.Version == "" {
				t.Errorf("list lacks something: %+v", s)
			}
		}
		quiet := strings.Fields(d.Must(t, "list", "--quiet"))
		table := d.Must(t, "list")
		var pids []int
		if err := json.Unmarshal([]byte(d.Must(t, "ps", "--format", "json", a.ID)), &pids); err != nil {
			t.Fatal(err)
		}
		if state := d.State(t, a.ID); len(pids) != 1 || pids[0] != state.Pid {
			t.Errorf("ps says %v, state %d", pids, state.Pid)
		}
		return result(empty, seen[a.ID], seen[b.ID], len(quiet), strings.Fields(strings.SplitN(table, "\n", 2)[0]), strings.Contains(d.Must(t, "ps", a.ID), "sleep 1000"))
	}, harness.Same)
}

func TestPause(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		c := d.Up(t, nil)
		d.Must(t, "pause", c.ID)
		paused := d.State(t, c.ID).Status
		refused := fails(t, d.Do(t, "exec", c.ID, "true"), "paused")
		twice := d.Do(t, "pause", c.ID).Exit != 0
		d.Must(t, "resume", c.ID)
		exec := d.Do(t, "exec", c.ID, "echo", "thawed")
		again := fails(t, d.Do(t, "resume", c.ID), "")
		d.Must(t, "pause", c.ID)
		d.Must(t, "delete", "--force", c.ID) // a frozen process can not die before it is thawed
		return result(paused, refused, twice, exec.Stdout, again, d.Do(t, "state", c.ID).Exit != 0)
	}, harness.Same)
}

func TestUpdate(t *testing.T) {
	const show = "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us pids/pids.max 2>/dev/null || cat memory.max cpu.max pids.max"
	for _, tc := range []struct {
		name  string
		args  []string
		stdin string
	}{
		{"flags", []string{"--memory", "67108864", "--cpu-quota", "20000", "--cpu-period", "50000", "--pids-limit", "40"}, ""},
		{"JSON", []string{"--resources", "-"}, `{"memory":{"limit":67108864},"cpu":{"quota":20000,"period":50000},"pids":{"limit":40}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				d := box.Bare(t, p)
				limit := int64(1 << 28)
				c := d.Up(t, func(s *specs.Spec) { s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit} })
				args := append(append([]string{"update"}, tc.args...), c.ID)
				if r := box.Run(t, harness.Cmd{Args: d.Args(args...), Stdin: tc.stdin}); r.Exit != 0 {
					t.Fatal(r)
				}
				return d.Do(t, "exec", c.ID, "sh", "-c", show)
			}, exact(0, "^67108864\n20000[ \n]50000\n40\n$"))
		})
	}
}

func TestEvents(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		c := d.Up(t, nil)
		var event struct {
			Type, ID string
			Data     struct {
				Memory struct {
					Usage struct{ Usage uint64 }
				}
				Pids struct{ Current uint64 }
				CPU  struct{ Usage struct{ Total uint64 } }
			}
		}
		if err := json.Unmarshal([]byte(d.Must(t, "events", "--stats", c.ID)), &event); err != nil {
			t.Fatal(err)
		}
		return result(event.Type, event.ID == c.ID, event.Data.Pids.Current, event.Data.Memory.Usage.Usage > 0)
	}, exact(0, "^stats\ntrue\n1\ntrue\n"))
}

func TestSpecFeaturesVersion(t *testing.T) {
	t.Run("spec", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d, dir := box.Bare(t, p), box.TempDir(t)
			d.Must(t, "spec", "--bundle", dir)
			var s specs.Spec
			data, err := os.ReadFile(filepath.Join(dir, "config.json"))
			if err == nil {
				err = json.Unmarshal(data, &s)
			}
			if err != nil {
				t.Fatal(err)
			}
			again := fails(t, d.Do(t, "spec", "--bundle", dir), "exist")
			return result(s.Process.Args, s.Process.Terminal, s.Root.Path, s.Hostname != "", len(s.Linux.Namespaces) >= 5, again)
		}, exact(0, "^\\[sh\\]\ntrue\nrootfs\ntrue\ntrue\nerror\n"))
	})
	t.Run("features", func(t *testing.T) {
		_, p := harness.Peers(t)
		var f struct {
			OCIVersionMin, OCIVersionMax string
			Hooks, MountOptions          []string
			Linux                        struct {
				Namespaces, Capabilities []string
				Cgroup                   map[string]any
				Seccomp                  struct {
					Enabled                           bool
					Archs, KnownFlags, SupportedFlags []string
				}
				MemoryPolicy struct{ Modes, Flags []string }
				IntelRdt     struct{ Enabled, Schemata, Monitoring bool }
				NetDevices   struct{ Enabled bool }
			}
		}
		if err := json.Unmarshal([]byte(box.Bare(t, p).Must(t, "features")), &f); err != nil {
			t.Fatal(err)
		}
		if f.OCIVersionMin == "" || f.OCIVersionMax == "" || len(f.Hooks) != 6 || len(f.MountOptions) == 0 || len(f.Linux.Namespaces) < 7 || !f.Linux.Seccomp.Enabled {
			t.Errorf("features %+v", f)
		}
		// What runtime-spec 1.3 added to the page.
		if l := f.Linux; len(l.Seccomp.Archs) < 16 || len(l.Seccomp.KnownFlags) != 4 || !slices.Contains(l.Seccomp.SupportedFlags, "SECCOMP_FILTER_FLAG_LOG") ||
			!slices.Contains(l.MemoryPolicy.Modes, "MPOL_BIND") || len(l.MemoryPolicy.Flags) != 3 || !l.IntelRdt.Schemata || !l.IntelRdt.Monitoring || !l.NetDevices.Enabled {
			t.Errorf("features %+v", l)
		}
		// Whatever runc knows.
		runc, _ := harness.Peers(t)
		var theirs struct {
			Hooks, MountOptions []string
			Linux               struct {
				Namespaces, Capabilities []string
				Seccomp                  struct{ Archs, Actions, Operators []string }
			}
		}
		if err := json.Unmarshal([]byte(box.Bare(t, runc).Must(t, "features")), &theirs); err != nil {
			t.Fatal(err)
		}
		for what, lists := range map[string][2][]string{
			"hooks": {theirs.Hooks, f.Hooks}, "mount options": {theirs.MountOptions, f.MountOptions}, "capabilities": {theirs.Linux.Capabilities, f.Linux.Capabilities},
			"namespaces": {theirs.Linux.Namespaces, f.Linux.Namespaces}, "architectures": {theirs.Linux.Seccomp.Archs, f.Linux.Seccomp.Archs},
		} {
			for _, name := range lists[0] {
				// Flags of mount(2) that mean nothing to Linux 5.15 or to the file systems of a container.
				gone := slices.Contains([]string{"acl", "noacl", "iversion", "noiversion", "mand", "nomand"}, name)
				if !gone && !slices.Contains(lists[1], name) {
					t.Errorf("%s: runc has %s", what, name)
				}
			}
		}
	})
	t.Run("version", func(t *testing.T) {
		_, p := harness.Peers(t)
		lines := strings.Split(box.Bare(t, p).Must(t, "--version"), "\n")
		if len(lines) < 3 || !strings.HasPrefix(lines[0], "agentsafe version ") || !strings.HasPrefix(lines[1], "commit: ") || !strings.HasPrefix(lines[2], "spec: ") {
			t.Errorf("version prints %q", lines)
		}
	})
}

func TestLog(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		log := filepath.Join(box.TempDir(t), "log")
		r := d.Do(t, "--log", log, "--log-format", "json", "state", "nosuch")
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		last := struct{ Level, Msg, Time string }{}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
			t.Fatalf("log %q: %v", data, err)
		}
		return result(r.Exit, last.Level, strings.Contains(last.Msg, "does not exist"), last.Time != "", strings.Contains(r.Stderr, "does not exist"))
	}, exact(0, "^1\nerror\ntrue\ntrue\ntrue\n"))
}
