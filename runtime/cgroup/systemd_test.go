package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestSystemdDriver(t *testing.T) {
	host := testHost(t)
	if os.Getenv(roleEnv) == roleUnified {
		return // systemd sees the machine's hierarchies, this process a v2 one
	}
	if !systemd.IsRunningSystemd() {
		t.Skip("probe systemd: it isn't this machine's init")
	}
	unit := "agentsafetest-" + strconv.Itoa(os.Getpid()) + ".scope"
	cfg, err := Plan(Input{
		ID: "t", CgroupsPath: ":agentsafetest:" + strconv.Itoa(os.Getpid()), Systemd: true, Host: host,
		Resources: &specs.LinuxResources{
			Memory:  &specs.LinuxMemory{Limit: new(int64(64 << 20))},
			Pids:    &specs.LinuxPids{Limit: new(int64(64))},
			CPU:     &specs.LinuxCPU{Quota: new(int64(50000)), Period: new(uint64(100000))},
			Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	g, err := Create(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Dir(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Dir before the unit: %v", err)
	}
	p := run(t, g, "head -c1 /dev/kmsg; exec sleep 100")
	second := run(t, g, "exec sleep 100")
	if out, err := exec.Command("systemctl", "show", "-p", "MemoryMax,MemoryLimit,TasksMax,DevicePolicy", unit).Output(); err != nil ||
		!strings.Contains(string(out), "=67108864") || !strings.Contains(string(out), "TasksMax=64") || !strings.Contains(string(out), "DevicePolicy=strict") {
		t.Errorf("unit: %v: %s", err, out)
	}
	file := "pids.max"
	if got := readFile(t, g, "pids", file); got != "64" {
		t.Errorf("%s = %q", file, got)
	}
	loaded, err := Load(g.State())
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Set(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(32))}}); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, loaded, "pids", file); got != "32" {
		t.Errorf("after Set: %s = %q", file, got)
	}
	if err := loaded.Freeze(); err != nil || !loaded.Frozen() {
		t.Errorf("freeze: %v, frozen %v", err, loaded.Frozen())
	}
	if err := loaded.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	if err := p.wait(t); err == nil || !strings.Contains(p.out.String(), "Operation not permitted") {
		t.Errorf("first process: %v, output %q", err, p.out)
	}
	if err := second.wait(t); err == nil {
		t.Error("second process ended by itself")
	}
	if err := loaded.Destroy(); err != nil {
		t.Error(err)
	}
	if loaded.Exists() {
		t.Error("cgroup exists after Destroy")
	}
	if out, _ := exec.Command("systemctl", "list-units", "--all", "--no-legend", unit).Output(); len(out) > 0 {
		t.Errorf("unit left: %s", out)
	}
}
