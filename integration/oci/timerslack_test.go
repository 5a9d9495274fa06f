package oci

import (
	"debug/buildinfo"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
	"github.com/agentsafe/agentsafe/runtime/entry"
)

// TestTimerSlack: agentsafe sets it for a thread of its own; what it starts has what the caller had. Which thread starts
// something differs from time to time, so each is done a few times.
func TestTimerSlack(t *testing.T) {
	const turns = 5
	own, err := os.ReadFile("/proc/self/timerslack_ns")
	if err != nil {
		t.Skip("probe timerslack_ns:", err)
	}
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := plain(t, p)
		hooked := filepath.Join(box.TempDir(t), "hook")
		var out strings.Builder
		for range turns {
			b := d.Up(t, func(s *specs.Spec) {
				hook := specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "cat /proc/self/timerslack_ns >>" + hooked}}
				s.Hooks = &specs.Hooks{Prestart: []specs.Hook{hook}, CreateContainer: []specs.Hook{hook}} //nolint:staticcheck // Docker uses it
			})
			out.WriteString(d.Must(t, "exec", b.ID, "cat", "/proc/self/timerslack_ns") + "\n")
			d.Must(t, "delete", "--force", b.ID)
			out.WriteString(d.RunSpec(t, harness.Sh("cat /proc/self/timerslack_ns")).Stdout)
		}
		data, err := os.ReadFile(hooked)
		if err != nil {
			t.Fatal(err)
		}
		return harness.Result{Stdout: out.String() + string(data)}
	}, exact(0, "^("+strings.TrimSpace(string(own))+"\n){"+strconv.Itoa(4*turns)+"}$"))
}

// TestMonitorThread: the program under test was linked with package entry, and its first thread has been
// given back what it had.
func TestMonitorThread(t *testing.T) {
	_, ours := harness.Peers(t)
	info, err := buildinfo.ReadFile(ours.Path)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("probe race detector: a program with it begins with libc's entry")
	}
	d := plain(t, ours)
	b := box.Bundle(t, harness.Sh("echo up; sleep 1000"))
	run := box.Start(t, harness.Cmd{Args: d.Args("run", "--bundle", b.Dir, b.ID)})
	t.Cleanup(func() { d.Do(t, "delete", "--force", b.ID); run.Wait(t) })
	waitFor(t, func() bool { return strings.Contains(run.Output(), "up") })
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(run.Pid()) + "/task")
	if err != nil {
		t.Fatal(err)
	}
	monitor := strconv.FormatInt(entry.Monitor.Nanoseconds(), 10)
	var slacks []string
	for _, task := range tasks {
		data, err := os.ReadFile("/proc/" + task.Name() + "/timerslack_ns")
		if err != nil {
			t.Skip("probe timerslack_ns of another process:", err)
		}
		slack := strings.TrimSpace(string(data))
		if task.Name() == strconv.Itoa(run.Pid()) && slack == monitor {
			t.Errorf("the first thread's slack is %s ns", slack)
		}
		slacks = append(slacks, slack)
	}
	if !slices.Contains(slacks, monitor) {
		t.Errorf("no thread has the slack of the Go runtime's monitor, %v: %v", entry.Monitor, slacks)
	}
}
