package limits

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// door is a way to run a script under a profile: an engine, or none.
type door struct {
	name string
	// folders are bound at their own paths.
	run func(t *testing.T, profile, script string, folders ...string) ran
	// timeout is the exit code after a time limit.
	timeout int
	// mute says that what is written when the container has ended reaches nobody: ctr of containerd 1.6 and conmon have
	// closed the streams by then.
	mute bool
}

// ran is what a script did, and where the evidence is.
type ran struct {
	harness.Result
	id, data string // data is agentsafectl's directory; "" for the host's
}

// some are the doors with a supervisor in each of its three places.
func some(t *testing.T) []door {
	t.Helper()
	all := doors(t)
	return []door{all[1], all[3], all[4]}
}

func doors(t *testing.T) []door {
	t.Helper()
	reloaded.Do(func() { reloadDocker(t) })
	return []door{
		{name: "agentsafe", run: func(t *testing.T, profile, script string, folders ...string) ran {
			d := box.Bare(t, harness.Peer{Name: profile, Path: wrapper(profile)})
			bundle := box.Bundle(t, func(s *specs.Spec) {
				harness.Sh(script)(s)
				for _, f := range folders {
					s.Mounts = append(s.Mounts, specs.Mount{Destination: f, Type: "bind", Source: f, Options: []string{"rbind"}})
				}
			})
			r := d.Do(t, "run", "--bundle", bundle.Dir, bundle.ID)
			return ran{Result: r, id: bundle.ID}
		}, timeout: 137},
		{name: "docker", run: func(t *testing.T, profile, script string, folders ...string) ran {
			id := filepath.Join(box.TempDir(t), "id")
			args := append([]string{"run", "--rm", "--cidfile", id, "--network", "none", "--runtime", profile}, volumes(folders)...)
			r := docker.Do(t, append(args, image, "sh", "-c", script)...)
			return ran{Result: r, id: read(t, id)}
		}, timeout: 137},
		{name: "containerd with runc's shim", run: func(t *testing.T, profile, script string, folders ...string) ran {
			id := box.ID()
			args := containerd.RunArgs(harness.Peer{Name: profile, Path: wrapper(profile)}, append([]string{"--rm"}, mounts(folders)...), "docker.io/library/"+image, id, "sh", "-c", script)
			return ran{Result: box.Run(t, harness.Cmd{Args: args}), id: id}
		}, timeout: 137, mute: true},
		{name: "containerd with our shim", run: func(t *testing.T, profile, script string, folders ...string) ran {
			id := box.ID()
			args := append([]string{"run", "--rm", "--runtime", shimPath(profile)}, mounts(folders)...)
			return ran{Result: containerd.Do(t, append(args, "docker.io/library/"+image, id, "sh", "-c", script)...), id: id}
		}, timeout: 137},
		{name: "agentsafectl", run: func(t *testing.T, profile, script string, folders ...string) ran {
			id, data := box.ID(), filepath.Join(box.Dir, "data")
			args := []string{program("agentsafectl"), "--data-dir", data, "run", "--id", id, "--profile", profile, "--rootfs", rootfs, "--user", "0"}
			for _, f := range folders {
				args = append(args, "--workspace", f)
			}
			return ran{id: id, data: data, Result: box.Run(t, harness.Cmd{Args: append(args, "--", "sh", "-c", script)})}
		}, timeout: 124},
		{name: "podman", run: func(t *testing.T, profile, script string, folders ...string) ran {
			id := filepath.Join(box.TempDir(t), "id")
			// conmon leaves a file named oom in its current directory.
			args := append([]string{
				"run", "--rm", "--cidfile", id, "--network", "none", "--cgroup-parent", box.CgroupParent(),
				"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
			}, volumes(folders)...)
			r := box.Run(t, harness.Cmd{Dir: filepath.Dir(id), Args: podman.Args(harness.Peer{Name: profile, Path: wrapper(profile)},
				append(args, image, "sh", "-c", script)...)})
			return ran{Result: r, id: read(t, id)}
		}, timeout: 137, mute: true},
	}
}

// volumes binds folders at their own paths, for Docker and Podman; mounts for ctr.
func volumes(folders []string) (args []string) {
	for _, f := range folders {
		args = append(args, "--volume", f+":"+f)
	}
	return args
}

func mounts(folders []string) (args []string) {
	for _, f := range folders {
		args = append(args, "--mount", "type=bind,src="+f+",dst="+f+",options=rbind:rw")
	}
	return args
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// wantLimits reads which limits a container has met from its evidence: those records, and the reason in the last one.
func (r ran) wantLimits(t *testing.T, reason string, limits ...string) {
	t.Helper()
	args := []string{program("agentsafectl")}
	if r.data != "" {
		args = append(args, "--data-dir", r.data)
	}
	log := box.Run(t, harness.Cmd{Args: append(args, "audit", "show", "--json", "--type", "limit,exit,close", r.id)})
	var met []string
	ended, closed := "", false
	for line := range strings.Lines(log.Stdout) {
		var record struct {
			Type string
			Data struct {
				Reason string
				End    struct{ Reason string }
			}
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		switch record.Type {
		case "limit":
			met = append(met, record.Data.Reason)
		case "exit":
			ended = record.Data.End.Reason
		case "close":
			closed = true
		}
	}
	if strings.Join(met, " ") != strings.Join(limits, " ") || ended != reason || !closed {
		t.Errorf("the evidence has the limits %q and the reason %q, closed %v; want %q and %q:\n%v\n%v", met, ended, closed, limits, reason, log, r.Result)
	}
}

// stubborn is a task that does what it can to stay: it ignores signals, forks twice, and leaves its session.
const stubborn = `trap "" TERM INT HUP; echo started; (setsid sh -c 'trap "" TERM; while :; do sleep 1; done' & ) ; while :; do sleep 1; done`

// TestWallClock relies on the harness for what is left behind: every process and cgroup.
func TestWallClock(t *testing.T) {
	for _, d := range doors(t) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			r := d.run(t, "wall", stubborn)
			// 1.5 s of its own, 2 s of grace, and the engine's own time.
			if r.Exit != d.timeout || r.Took < 3*time.Second || r.Took > time.Minute || !strings.Contains(r.Stdout, "started") {
				t.Errorf("want exit %d after some 4 s:\n%v", d.timeout, r)
			}
			if !strings.Contains(r.Stderr, `ran longer than 1.5s (limits.wallClock of profile "wall")`) {
				t.Errorf("%v the reason is not told:\n%v", time.Now(), r)
			}
			r.wantLimits(t, "wall-clock", "wall-clock")
		})
	}
}

func TestWallClock_CleansUpOnTerm(t *testing.T) {
	for _, d := range some(t) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			r := d.run(t, "wall", `trap 'echo cleaned up; exit 3' TERM; echo started; sleep 100 & wait`)
			want := 3
			if d.timeout == 124 {
				want = 124
			}
			if r.Exit != want || !strings.Contains(r.Stdout, "cleaned up") || r.Took > time.Minute {
				t.Errorf("want exit %d, and what the task prints on SIGTERM:\n%v", want, r)
			}
		})
	}
}

func TestWallClock_ShortTasksAreLeftAlone(t *testing.T) {
	for _, d := range some(t) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			if r := d.run(t, "wall", "echo hello; exit 7"); r.Exit != 7 || strings.TrimSpace(r.Stdout) != "hello" || strings.Contains(r.Stderr, "longer") {
				t.Errorf("want hello and 7:\n%v", r)
			}
		})
	}
}

func TestCPUTime(t *testing.T) {
	for _, d := range doors(t) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			r := d.run(t, "cpu", `trap "" TERM; while :; do :; done & while :; do :; done`)
			if r.Exit != d.timeout || r.Took > time.Minute || !strings.Contains(r.Stderr, "more than 1s of CPU time") {
				t.Errorf("want exit %d and the reason:\n%v", d.timeout, r)
			}
			r.wantLimits(t, "cpu-time", "cpu-time")
		})
	}
}

// TestMemoryProcessesAndFiles: what the kernel refuses is told apart, for people and in the evidence.
func TestMemoryProcessesAndFiles(t *testing.T) {
	for _, d := range doors(t) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			r := d.run(t, "few", "ulimit -n; ulimit -Hn; ulimit -n 65 2>&1")
			if lines := strings.Fields(r.Stdout); len(lines) < 3 || lines[0] != "64" || lines[1] != "64" || r.Exit == 0 {
				t.Errorf("open files: want 64, 64 and a refusal to raise it:\n%v", r)
			}
			r.wantLimits(t, "")
			r = d.run(t, "few", "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; wait")
			if !strings.Contains(r.Stderr, "fork") || !d.mute && !strings.Contains(r.Stderr, `processes: 24 are allowed (limits.pids of profile "few")`) {
				t.Errorf("processes: want forks to fail, and the reason:\n%v", r)
			}
			r.wantLimits(t, "", "pids")
			r = d.run(t, "few", "head -c 200m /dev/zero | tail -c 150m >/dev/null; exit $?")
			if r.Exit != 137 || !d.mute && !strings.Contains(r.Stderr, "ran out of memory") {
				t.Errorf("memory: want 137 and the reason:\n%v", r)
			}
			r.wantLimits(t, "oom", "oom")
		})
	}
}

// TestReasonInState reads why a container was ended while it is still there.
func TestReasonInState(t *testing.T) {
	d := box.Bare(t, harness.Peer{Name: "wall", Path: wrapper("wall")})
	bundle := d.Up(t, func(s *specs.Spec) { s.Process.Args = []string{"sh", "-c", stubborn} })
	d.WaitStatus(t, bundle.ID, "stopped")
	var s struct {
		End struct {
			Reason, Message string
			At              time.Time
		}
	}
	if err := json.Unmarshal([]byte(d.Must(t, "state", bundle.ID)), &s); err != nil {
		t.Fatal(err)
	}
	if s.End.Reason != "wall-clock" || !strings.Contains(s.End.Message, "1.5s") || time.Since(s.End.At) > time.Minute {
		t.Errorf("state says %+v, want wall-clock", s.End)
	}
	d.Must(t, "delete", bundle.ID)
}

// TestExecWallClock: an exec's limit ends it and all its descendants, and nothing else of the container.
func TestExecWallClock(t *testing.T) {
	d := box.Bare(t, harness.Peer{Name: "execs", Path: wrapper("execs")})
	bundle := d.Up(t, nil)
	for _, detach := range []bool{false, true} {
		args := []string{"exec"}
		if detach {
			args = append(args, "--detach")
		}
		r := d.Do(t, append(args, bundle.ID, "sh", "-c", stubborn)...)
		if !detach && (r.Exit != 137 || r.Took < 2*time.Second) {
			t.Errorf("want 137 after some 3 s:\n%v", r)
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			ps := d.Must(t, "exec", bundle.ID, "sh", "-c", "ps | grep -v '[[]'") // zombies: sleep does not reap
			if !strings.Contains(ps, "setsid") && strings.Count(ps, "sleep") == 1 && strings.Contains(ps, "sleep 1000") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("detach %v: the exec is still there, or the container's own process is not:\n%s", detach, ps)
			}
		}
	}
	if r := d.Do(t, "exec", bundle.ID, "sh", "-c", "exit 5"); r.Exit != 5 {
		t.Errorf("a short exec: want 5:\n%v", r)
	}
	if s := d.State(t, bundle.ID); s.Status != "running" {
		t.Errorf("the container is %s, want running", s.Status)
	}
}

// TestNoMonitorNoExec: when whoever enforces the limits is gone, the container gets no further process.
func TestNoMonitorNoExec(t *testing.T) {
	d := box.Bare(t, harness.Peer{Name: "execs", Path: wrapper("execs")})
	bundle := d.Up(t, nil)
	var s struct{ SupervisorPid int }
	data, err := os.ReadFile(d.Root + "/" + bundle.ID + "/state.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &s); err != nil || s.SupervisorPid == 0 {
		t.Fatalf("no supervisor in %s: %v", data, err)
	}
	p, err := os.FindProcess(s.SupervisorPid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		r := d.Do(t, "exec", bundle.ID, "true")
		if r.Exit != 0 {
			if !strings.Contains(r.Stderr, "supervisor") {
				t.Errorf("want the supervisor named:\n%v", r)
			}
			d.Must(t, "delete", "--force", bundle.ID)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("exec goes on without a monitor")
}

// TestNoMonitorNoContainer: without the program nothing is created.
func TestNoMonitorNoContainer(t *testing.T) {
	dir := box.TempDir(t)
	for _, name := range []string{"agentsafe", "agentsafe-seccomp"} {
		if out, err := exec.Command("cp", program(name), dir).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
	}
	d := box.Bare(t, harness.Peer{Name: "wall", Path: dir + "/agentsafe"})
	bundle := box.Bundle(t, nil)
	r := d.Do(t, "--profile", "wall", "run", "--bundle", bundle.Dir, bundle.ID)
	if r.Exit == 0 || !strings.Contains(r.Stderr, "monitor") {
		t.Errorf("want a refusal that names the monitor:\n%v", r)
	}
}
