package cgroup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// These tests work on the cgroups of the machine, as root, below testParent. TestUnifiedHost runs them a second time as
// on a pure cgroup v2 host.

func testHost(t *testing.T) Host {
	t.Helper()
	host, err := ReadHost()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("probe root: cgroups can't be made")
	}
	return host
}

// testPath is the cgroup of one test; its parent is the test's own.
func testPath(t *testing.T) string {
	return testParent + "-" + strings.ReplaceAll(t.Name(), "/", "-") + "/group"
}

func testPlan(t *testing.T, r *specs.LinuxResources) *Config {
	t.Helper()
	cfg, err := Plan(Input{ID: "t", CgroupsPath: testPath(t), Resources: r, Host: testHost(t)})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// testGroup creates a group that the test's end kills and destroys.
func testGroup(t *testing.T, r *specs.LinuxResources) *Group {
	t.Helper()
	g, err := Create(testPlan(t, r))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endGroup(t, g) })
	return g
}

func endGroup(t *testing.T, g *Group) {
	t.Helper()
	if err := g.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	if err := g.Destroy(); err != nil {
		t.Error(err)
	}
	if g.Exists() {
		t.Error("cgroup exists after Destroy")
	}
	// Create made the parent too, which stays as documented.
	for _, dir := range g.dirs() {
		if err := unix.Rmdir(filepath.Dir(dir)); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Errorf("remove parent of %s: %v", dir, err)
		}
	}
}

// process is a child that waits for a line before it does anything, so that it does all of it inside the group.
type process struct {
	*exec.Cmd
	out  *bytes.Buffer
	gate io.WriteCloser
	done chan error

	limitPids int64
}

func (p *process) start(t *testing.T, g *Group) {
	t.Helper()
	p.out = &bytes.Buffer{}
	p.Stdout, p.Stderr = p.out, p.out
	p.WaitDelay = time.Second
	var err error
	if p.gate, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.done = make(chan error, 1)
	t.Cleanup(func() {
		_ = p.Process.Kill()
		p.gate.Close()
		// A frozen process doesn't die: the test reports it instead of hanging on it.
		select {
		case <-p.done: //nolint:errcheck // it was killed
		case <-time.After(20 * time.Second):
			t.Error("process doesn't die")
		}
	})
	go func() { p.done <- p.Wait(); close(p.done) }()
	if err := g.Add(p.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if p.limitPids > 0 {
		limitPids(t, g, p.limitPids, p.Process.Pid)
	}
	if _, err := io.WriteString(p.gate, "go\n"); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, g *Group, script string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command("/bin/sh", "-c", "read go; "+script)}
	p.start(t, g)
	return p
}

func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("process does not end")
		return nil
	}
}

func readFile(t *testing.T, g *Group, controller, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(g.Path(controller), file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

func TestCreateWritesLimits(t *testing.T) {
	host := testHost(t)
	if !host.has("memory") {
		t.Skip("probe memory: the unified hierarchy of a hybrid host hasn't got the controller")
	}
	g := testGroup(t, &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20)), Reservation: new(int64(32 << 20)), Swap: memSwap(host)},
		CPU: &specs.LinuxCPU{
			Shares: new(uint64(512)), Quota: new(int64(50000)), Period: new(uint64(100000)), Burst: new(uint64(10000)), Cpus: "0",
		},
		Pids: &specs.LinuxPids{Limit: new(int64(64))},
	})
	type want struct{ controller, file, value string }
	values := []want{
		{"memory", "memory.limit_in_bytes", "67108864"},
		{"memory", "memory.soft_limit_in_bytes", "33554432"},
		{"cpu", "cpu.shares", "512"},
		{"cpu", "cpu.cfs_quota_us", "50000"},
		{"cpu", "cpu.cfs_period_us", "100000"},
		{"cpu", "cpu.cfs_burst_us", "10000"},
		{"cpuset", "cpuset.cpus", "0"},
		{"cpuset", "cpuset.mems", "0"},
		{"pids", "pids.max", "64"},
	}
	if host.Unified {
		values = []want{
			{"", "memory.max", "67108864"},
			{"", "memory.low", "33554432"},
			{"", "memory.swap.max", "0"},
			{"", "cpu.weight", strconv.FormatUint(cgroups.ConvertCPUSharesToCgroupV2Value(512), 10)},
			{"", "cpu.max", "50000 100000"},
			{"", "cpu.max.burst", "10000"},
			{"", "cpuset.cpus", "0"},
			{"", "pids.max", "64"},
		}
	}
	for _, tt := range values {
		if got := readFile(t, g, tt.controller, tt.file); got != tt.value {
			t.Errorf("%s = %q, want %q", tt.file, got, tt.value)
		}
	}
	if host.Unified {
		return
	}
	rules := readFile(t, g, "devices", "devices.list")
	if strings.Contains(rules, "a *:* rwm") || !strings.Contains(rules, "c 1:3 rwm") {
		t.Errorf("devices.list:\n%s", rules)
	}
}

// memSwap forbids swapping on v2; v1 kernels without swap accounting have no file for it.
func memSwap(host Host) *int64 {
	if host.Unified {
		return new(int64(64 << 20))
	}
	return nil
}

// TestAddJoinsEveryHierarchy: statistics of engines are wrong for a hierarchy that was left out.
func TestAddJoinsEveryHierarchy(t *testing.T) {
	g := testGroup(t, nil)
	p := run(t, g, "exec sleep 100")
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.Process.Pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if testHost(t).Unified && !strings.HasPrefix(line, "0:") {
			continue
		}
		joined := strings.HasSuffix(strings.TrimSpace(line), testPath(t))
		if left := strings.Contains(line, ":cpuset:"); joined == left {
			t.Errorf("after Add: %s", line)
		}
	}
}

func TestCreateRefusesUsedCgroup(t *testing.T) {
	g := testGroup(t, nil)
	p := run(t, g, "exec sleep 100")
	if _, err := Create(testPlan(t, nil)); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("cgroup with a process: %v", err)
	}
	_ = p.Process.Kill()
	_ = p.wait(t)
	if err := g.Freeze(); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(testPlan(t, nil)); !errors.Is(err, ErrFrozen) {
		t.Errorf("frozen cgroup: %v", err)
	}
	if err := g.Thaw(); err != nil {
		t.Fatal(err)
	}
	again, err := Create(testPlan(t, nil))
	if err != nil {
		t.Fatalf("empty cgroup: %v", err)
	}
	endGroup(t, again)
}

// TestCreateFailureLeavesNothing: an impossible limit, and no directory of any hierarchy stays, parents included.
func TestCreateFailureLeavesNothing(t *testing.T) {
	host := testHost(t)
	r := &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "4000"}}
	if host.Unified {
		r = &specs.LinuxResources{Unified: map[string]string{"cgroup.max.depth": "deep"}}
	}
	path := testParent + "/b/c"
	cfg, err := Plan(Input{ID: "t", CgroupsPath: path, Resources: r, Host: host})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Create(cfg)
	if err == nil || !strings.Contains(err.Error(), "cpuset") && !strings.Contains(err.Error(), "cgroup.max.depth") {
		t.Errorf("error doesn't name the controller: %v", err)
	}
	for _, dir := range cfg.Paths {
		for range 3 {
			if exists(dir) {
				t.Errorf("%s exists", dir)
			}
			dir = filepath.Dir(dir)
		}
	}
}

func TestKillForkBomb(t *testing.T) {
	for _, how := range []string{"cgroup.kill", "freezer", "frozen"} {
		t.Run(how, func(t *testing.T) {
			g := testGroup(t, nil)
			p := &process{Cmd: exec.Command("/bin/sh", "-c", "read go; b() { b | b & b; }; b")}
			p.limitPids = 64
			p.start(t, g)
			eventually(t, "30 processes", func() bool {
				pids, err := g.PIDs(true)
				if err != nil {
					t.Fatal(err)
				}
				return len(pids) >= 30
			})
			switch how {
			case "freezer":
				if g.state.Unified {
					hideKillFile(t, g) // as before Linux 5.14
				} else {
					// As on a v1 host without the unified hierarchy.
					delete(g.state.Paths, "")
					defer func() { g.state.Paths[""] = filepath.Join(mountRoot, "unified", testPath(t)) }()
				}
			case "frozen":
				// The v1 freezer gives up on processes that are being born while it looks.
				eventually(t, "a frozen group", func() bool { return g.Freeze() == nil })
			}
			start := time.Now()
			if err := g.Kill(context.Background()); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("took %v", d)
			}
			if pids, err := g.PIDs(true); err != nil || len(pids) > 0 {
				t.Errorf("left: %v, %v", pids, err)
			}
			if g.state.Unified && g.Frozen() {
				if err := g.Thaw(); err != nil {
					t.Error(err)
				}
			}
			_ = p.wait(t)
		})
	}
}

// hideKillFile makes cgroup.kill refuse to be written until the test ends.
func hideKillFile(t *testing.T, g *Group) {
	t.Helper()
	file := filepath.Join(g.state.Paths[""], "cgroup.kill")
	if err := unix.Mount(file, file, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
	if err := unix.Mount("", file, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("1"), 0); err == nil {
		t.Fatal("cgroup.kill can be written all the same")
	}
}

// limitPids bounds a fork bomb. The unified hierarchy of a hybrid host hasn't got the controller: there the v1 hierarchy
// is mounted once more, in the private mount namespace of TestUnifiedHost.
func limitPids(t *testing.T, g *Group, n int64, pid int) {
	t.Helper()
	if host := testHost(t); host.has("pids") {
		if err := g.Set(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &n}}); err != nil {
			t.Fatal(err)
		}
		return
	}
	mount := t.TempDir()
	if err := unix.Mount("none", mount, "cgroup", 0, "pids"); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(mount, testParent)
	t.Cleanup(func() {
		eventually(t, "pids cgroup removed", func() bool { return unix.Rmdir(dir) == nil })
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(strconv.FormatInt(n, 10)), 0); err != nil {
		t.Fatal(err)
	}
	if err := placeProcess(dir, pid); err != nil {
		t.Fatal(err)
	}
}

func TestKillTakesSubCgroupsAlong(t *testing.T) {
	g := testGroup(t, nil)
	sub := "inner"
	for _, dir := range g.dirs() {
		if err := unix.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := run(t, g, "exec sleep 100")
	if err := g.AddExec(p.Process.Pid, 0, map[string]string{"": sub}); err != nil {
		t.Fatal(err)
	}
	if pids, err := g.PIDs(false); err != nil || len(pids) > 0 {
		t.Errorf("in the cgroup itself: %v, %v", pids, err)
	}
	if pids, err := g.PIDs(true); err != nil || !slices.Contains(pids, p.Process.Pid) {
		t.Errorf("recursive: %v, %v", pids, err)
	}
	if err := g.Destroy(); err == nil {
		t.Error("Destroy of a cgroup in use succeeds")
	}
	if err := g.Kill(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("process: %v", err)
	}
}

func TestAddExecRefusesDotDot(t *testing.T) {
	g := testGroup(t, nil)
	if err := g.AddExec(os.Getpid(), 0, map[string]string{"": "../.."}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %v", err)
	}
}

func TestFreeze(t *testing.T) {
	g := testGroup(t, nil)
	file := filepath.Join(t.TempDir(), "ticks")
	p := run(t, g, "while :; do echo >>"+file+"; sleep 0.01; done")
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	eventually(t, "ticks", func() bool { return size() > 3 })
	if g.Frozen() {
		t.Error("frozen before Freeze")
	}
	if err := g.Freeze(); err != nil {
		t.Fatal(err)
	}
	if !g.Frozen() {
		t.Error("not frozen after Freeze")
	}
	before := size()
	time.Sleep(100 * time.Millisecond)
	if size() != before {
		t.Error("runs on while frozen")
	}
	if err := g.Thaw(); err != nil {
		t.Fatal(err)
	}
	if g.Frozen() {
		t.Error("frozen after Thaw")
	}
	eventually(t, "ticks after thaw", func() bool { return size() > before+3 })
	_ = p.Process.Kill()
}

// TestFreezeAgainstThaw: a freeze that another operation undoes says so, and says nothing else.
func TestFreezeAgainstThaw(t *testing.T) {
	g := testGroup(t, nil)
	p := run(t, g, "sleep 100")
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_ = g.Thaw() // what it meets is the freeze's to tell
			}
		}
	}()
	seen := 0
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until) && seen == 0; {
		err := g.Freeze()
		switch {
		case errors.Is(err, ErrThawed):
			seen++
		case err != nil:
			t.Fatal(err)
		}
	}
	close(stop)
	<-ended
	if seen == 0 {
		t.Error("no thaw met a freeze, so nothing was tried")
	}
	_ = g.Thaw()
	_ = p.Process.Kill()
}

func TestSignalReachesAll(t *testing.T) {
	g := testGroup(t, nil)
	p := run(t, g, "trap 'echo got TERM; exit 7' TERM; sleep 100 & wait")
	// Between fork and exec the shell's child would swallow the signal: traps are still set and then forgotten.
	eventually(t, "sleep runs", func() bool {
		pids, _ := g.PIDs(true)
		return slices.ContainsFunc(pids, func(pid int) bool {
			comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
			return string(comm) == "sleep\n"
		})
	})
	if err := g.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := p.wait(t); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("shell: %v, output %q", err, p.out)
	}
	eventually(t, "no process", func() bool { pids, _ := g.PIDs(true); return len(pids) == 0 })
}

func TestDevicesAreEnforced(t *testing.T) {
	g := testGroup(t, &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
		{Allow: false, Access: "rwm"},
		{Allow: false, Type: "c", Major: new(int64(1)), Minor: new(int64(5)), Access: "rwm"}, // zero
	}})
	p := run(t, g, `head -c1 /dev/zero; head -c1 /dev/urandom >/dev/null && echo urandom; head -c1 /dev/kmsg; echo >/dev/null && echo null`)
	_ = p.wait(t)
	out := p.out.String()
	for _, want := range []string{"'/dev/zero' for reading: Operation not permitted", "urandom\n", "null\n", "'/dev/kmsg' for reading: Operation not permitted"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestDeviceDenyListIsEnforced(t *testing.T) {
	g := testGroup(t, &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
		{Allow: true, Access: "rwm"},
		{Allow: false, Type: "c", Major: new(int64(1)), Minor: new(int64(5)), Access: "w"},
	}})
	p := run(t, g, `head -c1 /dev/zero >/dev/null && echo read; echo >/dev/zero; exec 3<>/dev/zero; echo both`)
	_ = p.wait(t)
	out := p.out.String()
	if !strings.Contains(out, "read\n") || strings.Count(out, "Operation not permitted") != 2 || strings.Contains(out, "both") {
		t.Errorf("output:\n%s", out)
	}
}

func TestOOM(t *testing.T) {
	if host := testHost(t); !host.has("memory") {
		t.Skip("probe memory: the unified hierarchy of a hybrid host hasn't got the controller")
	}
	g := testGroup(t, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(16 << 20))}})
	events, err := g.WatchOOM(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command("/proc/self/exe")}
	p.Env = append(os.Environ(), roleEnv+"="+roleHog)
	p.start(t, g)
	select {
	case _, ok := <-events:
		if !ok {
			t.Error("channel closed without an event")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no OOM event")
	}
	if err := p.wait(t); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("hog: %v", err)
	}
	if n, err := g.OOMKillCount(); err != nil || n == 0 {
		t.Errorf("OOM kills: %d, %v", n, err)
	}
	if err := g.Destroy(); err != nil {
		t.Fatal(err)
	}
	for range events { // more events may have come; then the end
	}
}

func TestWatchOOMEndsWithContext(t *testing.T) {
	if host := testHost(t); !host.has("memory") {
		t.Skip("probe memory: the unified hierarchy of a hybrid host hasn't got the controller")
	}
	g := testGroup(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	events, err := g.WatchOOM(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, ok := <-events; ok {
		t.Error("event without cause")
	}
}

func TestStateRoundTrip(t *testing.T) {
	g := testGroup(t, nil)
	p := run(t, g, "exec sleep 100")
	data, err := json.Marshal(g.State())
	if err != nil {
		t.Fatal(err)
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(s)
	if err != nil {
		t.Fatal(err)
	}
	if pids, err := loaded.PIDs(true); err != nil || !slices.Equal(pids, []int{p.Process.Pid}) {
		t.Errorf("processes of the loaded group: %v, %v", pids, err)
	}
	if err := loaded.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	var status *exec.ExitError
	if err := p.wait(t); !errors.As(err, &status) || status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("process: %v", err)
	}
}

func TestRootlessWithoutDelegation(t *testing.T) {
	testHost(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test binary may lie where nobody can't look: it is passed as a descriptor.
	file, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{file}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), roleEnv+"="+roleRootless, argEnv+"="+testParent+"/nobody")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "delegated") {
		t.Errorf("%v: %s", err, out)
	}
}
