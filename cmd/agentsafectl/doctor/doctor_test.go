package doctor

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// probeArg makes the test binary a child of Probe.
const probeArg = "doctor-test-probe"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == probeArg {
		if err := RunProbe(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Bool("update", false, "rewrite golden files")
	flag.Parse()
	os.Exit(m.Run())
}

// goodFacts is a host that has everything.
func goodFacts() *Facts {
	f := &Facts{
		Release: "6.18.1-generic", Machine: "amd64", CapsEff: 1<<41 - 1, LandlockABI: 7,
		SeccompFilter: true, SeccompActions: []string{"kill_process", "errno", "user_notif", "log", "allow"},
		Syscalls: map[string]string{}, Namespaces: []string{"mnt", "pid", "net", "ipc", "uts", "cgroup", "user", "time"},
		UserNSMax: 1000, UserNSForAll: true, SubIDs: true, LSMs: []string{"landlock", "apparmor"}, AppArmor: true,
		Cgroup: CgroupFacts{
			Mode: "unified", Controllers: []string{"cpu", "io", "memory", "pids"}, Writable: true, Kill: true, Systemd: true,
		},
		Programs: map[string]string{"agentsafe": "/usr/local/bin/agentsafe", "agentsafe-seccomp": "/usr/local/bin/agentsafe-seccomp"},
		Dirs: []DirFacts{
			{Name: "state directory", Path: "/run/agentsafe", FreeBytes: 8 << 30},
			{Name: "data directory", Path: "/var/lib/agentsafe", Exists: true, Mode: 0o700, FreeBytes: 80 << 30},
		},
		Engines: []EngineFacts{
			{Name: "docker", Version: "Docker version 29.1", ConfigPath: "/etc/docker/daemon.json", Registered: true},
			{Name: "containerd", ConfigPath: "/etc/containerd/config.toml"},
			{Name: "podman", Version: "podman version 4.3.1", ConfigPath: "/etc/containers/containers.conf"},
		},
	}
	for _, n := range []string{
		"openat2", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "mount_setattr",
		"pidfd_open", "pidfd_send_signal", "clone3", "close_range",
	} {
		f.Syscalls[n] = ""
	}
	return f
}

func TestReportGolden(t *testing.T) {
	poor := goodFacts()
	poor.Release, poor.Machine, poor.CapsEff = "5.10.0-28-amd64", "riscv64", 1<<21
	poor.LandlockABI, poor.LandlockErr = 0, "built in but not enabled at boot"
	poor.SeccompActions, poor.SeccompWaitKillErr = []string{"errno", "allow"}, "invalid argument"
	poor.Syscalls["mount_setattr"] = "function not implemented"
	delete(poor.Syscalls, "openat2")
	poor.Namespaces = []string{"mnt", "pid", "net", "ipc", "uts"}
	poor.MemfdErr, poor.MemfdNoExec = "memfd_create: permission denied", 2
	poor.UserNSErr, poor.UserNSMax, poor.SubIDs = "no space left on device", 0, false
	poor.OverlayErr, poor.NFTablesErr = "mount overlay: no such device", "install rules: operation not supported"
	poor.CoreToProgram, poor.LSMs, poor.AppArmor = "/usr/lib/systemd/systemd-coredump", nil, false
	poor.Cgroup = CgroupFacts{Mode: "hybrid", Controllers: []string{"cpu", "memory"}, Writable: true}
	poor.Programs = map[string]string{}
	poor.Dirs = []DirFacts{
		{Name: "state directory", Path: "/run/agentsafe", Exists: true, Mode: 0o777, FreeBytes: 8 << 30},
		{Name: "data directory", Path: "/var/lib/agentsafe", Err: "read-only file system"},
	}
	poor.Engines[0] = EngineFacts{Name: "docker", Version: "Docker version 20.10", ConfigPath: "/etc/docker/daemon.json", ConfigErr: "parse: unexpected end of JSON input"}
	poor.Config = HostConfigFacts{Default: "build", Handlers: []string{"ci=agent", "x=lint"}, WarnOnly: []string{"ci"}}
	for name, f := range map[string]*Facts{"good": goodFacts(), "poor": poor} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Judge(f).WriteTable(&b, false); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".golden")
			if flag.Lookup("update").Value.String() == "true" {
				if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(want, b.Bytes()) {
				t.Errorf("%s differs (%v), rerun with -update and read the diff. Got:\n%s", path, err, b.String())
			}
		})
	}
}

// TestRequiredRowsDecide breaks one fact at a time: each must turn the verdict,
// and the row must say what to do.
func TestRequiredRowsDecide(t *testing.T) {
	if !Judge(goodFacts()).Enforceable {
		t.Fatal("the good host is refused")
	}
	breaks := map[string]func(*Facts){
		"kernel":            func(f *Facts) { f.Release = "5.14.21" },
		"privileges":        func(f *Facts) { f.CapsEff &^= 1 << 21 },
		"landlock":          func(f *Facts) { f.LandlockABI = 0 },
		"seccomp":           func(f *Facts) { f.SeccompFilter = false },
		"cgroups":           func(f *Facts) { f.Cgroup.Writable = false },
		"path resolution":   func(f *Facts) { f.Syscalls["openat2"] = "function not implemented" },
		"mount API":         func(f *Facts) { f.Syscalls["fsmount"] = "operation not permitted" },
		"pidfd":             func(f *Facts) { f.Syscalls["pidfd_open"] = "function not implemented" },
		"clone3":            func(f *Facts) { f.Syscalls["clone3"] = "function not implemented" },
		"sealed memfd":      func(f *Facts) { f.MemfdErr, f.MemfdNoExec = "permission denied", 2 },
		"namespaces":        func(f *Facts) { f.Namespaces = f.Namespaces[1:] },
		"nftables":          func(f *Facts) { f.NFTablesErr = "operation not supported" },
		"agentsafe-seccomp": func(f *Facts) { f.Programs["agentsafe-seccomp"] = "" },
		"state directory":   func(f *Facts) { f.Dirs[0].Err = "permission denied" },
		"data directory":    func(f *Facts) { f.Dirs[1].UID = 1000 },
	}
	for check, breakIt := range breaks {
		f := goodFacts()
		breakIt(f)
		r := Judge(f)
		at := slices.IndexFunc(r.Rows, func(row Row) bool { return row.Check == check })
		if r.Enforceable || at < 0 || r.Rows[at].Status != Missing || r.Rows[at].Advice == "" {
			t.Errorf("%s: enforceable %v, row %+v", check, r.Enforceable, r.Rows[max(at, 0)])
		}
	}
	for _, row := range Judge(goodFacts()).Rows {
		if _, tested := breaks[row.Check]; row.Required && !tested {
			t.Errorf("required row %q has no case here", row.Check)
		}
	}
}

func TestReportJSON(t *testing.T) {
	var b bytes.Buffer
	if err := Judge(goodFacts()).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || !back.Enforceable || len(back.Rows) < 15 {
		t.Errorf("JSON: %v, %+v", err, back)
	}
}

func TestColourOnlyWhenAsked(t *testing.T) {
	for _, colour := range []bool{false, true} {
		var b bytes.Buffer
		if err := Judge(goodFacts()).WriteTable(&b, colour); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "\x1b[") != colour {
			t.Errorf("colour %v: %q", colour, b.String()[:80])
		}
	}
}

func TestKernelVersion(t *testing.T) {
	for release, want := range map[string][2]int{"6.18.44-fc": {6, 18}, "5.15.0": {5, 15}, "6.1": {6, 1}, "5.15-rc1": {5, 15}} {
		if major, minor, err := kernelVersion(release); err != nil || major != want[0] || minor != want[1] {
			t.Errorf("%s: %d.%d, %v", release, major, minor, err)
		}
	}
	for _, bad := range []string{"", "linux", "x.y", "6"} {
		if _, _, err := kernelVersion(bad); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
}

// TestProbe holds the probes against what a kernel of the project's minimum has:
// a probe that wrongly says "unsupported" fails here.
func TestProbe(t *testing.T) {
	f, err := Probe(t.Context(), Options{
		Program: os.Args[0], ProbeArgs: []string{probeArg}, StateDir: "/run/agentsafe-no-such", DataDir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if major, minor, err := kernelVersion(f.Release); err != nil || major < 5 || major == 5 && minor < 15 {
		t.Skipf("probe kernel 5.15: %s", f.Release)
	}
	for name, text := range f.Syscalls {
		if text != "" {
			t.Errorf("%s: %s", name, text)
		}
	}
	if len(f.Syscalls) != 11 || !f.SeccompFilter || !slices.Contains(f.SeccompActions, "errno") || f.MemfdErr != "" {
		t.Errorf("facts %+v", f)
	}
	if f.Dirs[0].Exists || f.Dirs[0].Err != "" || !f.Dirs[1].Exists || f.Dirs[1].FreeBytes == 0 {
		t.Errorf("directories %+v", f.Dirs)
	}
	if os.Geteuid() == 0 && f.CapsEff&(1<<21) != 0 && f.NFTablesErr != "" {
		t.Errorf("nftables: %s", f.NFTablesErr)
	}
	if _, err := os.ReadFile("/sys/module/overlay/refcnt"); err == nil && os.Geteuid() == 0 && f.OverlayErr != "" {
		t.Errorf("overlay: %s", f.OverlayErr)
	}
	if f.Cgroup.Mode == "none" {
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
			t.Errorf("cgroups %+v", f.Cgroup)
		}
	}
}

// TestProbeFailsWhereThereIsNothing: children that can't get what they ask for
// report it, and are not taken for success.
func TestProbeFailsWhereThereIsNothing(t *testing.T) {
	err := child(t.Context(), Options{Program: os.Args[0], ProbeArgs: []string{probeArg}}, "no-such-probe", 0)
	if err == nil || !strings.Contains(err.Error(), "unknown probe") {
		t.Errorf("error = %v", err)
	}
	err = child(t.Context(), Options{Program: "/no/such/program"}, probeNothing, unix.CLONE_NEWNS)
	if err == nil {
		t.Error("a program that is not there succeeded")
	}
}

func TestEngineConfiguration(t *testing.T) {
	tests := map[string]struct {
		f    func([]byte) (bool, error)
		data string
		want bool
		err  bool
	}{
		"docker":           {dockerRegistered, `{"runtimes":{"agentsafe":{"path":"/x"}}}`, true, false},
		"docker other":     {dockerRegistered, `{"runtimes":{"runsc":{"path":"/x"}}}`, false, false},
		"docker broken":    {dockerRegistered, `{"runtimes"`, false, true},
		"containerd v2":    {containerdRegistered, "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.agentsafe]\nruntime_type = \"io.containerd.runc.v2\"\n", true, false},
		"containerd shim":  {containerdRegistered, "[plugins.x.containerd.runtimes.safe]\nruntime_type = \"io.containerd.agentsafe.v2\"\n", true, false},
		"containerd path":  {containerdRegistered, "[plugins.x.containerd.runtimes.safe.options]\nBinaryName = \"/opt/bin/agentsafe\"\n", true, false},
		"containerd other": {containerdRegistered, "[plugins.x.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n", false, false},
		"podman":           {podmanRegistered, "[engine.runtimes]\nagentsafe = [\"/x\"]\n", true, false},
		"podman other":     {podmanRegistered, "[engine]\nruntime = \"crun\"\n", false, false},
		"podman broken":    {podmanRegistered, "[engine", false, true},
		"crio":             {crioRegistered, "[crio.runtime.runtimes.agentsafe]\nruntime_path = \"/x\"\n", true, false},
	}
	for name, tt := range tests {
		if got, err := tt.f([]byte(tt.data)); got != tt.want || (err != nil) != tt.err {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestEngineDropIns(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "etc/containers/containers.conf.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "10-agentsafe.conf"), []byte("[engine.runtimes]\nagentsafe = [\"/x\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	e := EngineFacts{Name: "podman", ConfigPath: "/etc/containers/containers.conf"}
	e.look(root, podmanRegistered)
	if !e.Registered || e.ConfigPath != "/etc/containers/containers.conf.d/10-agentsafe.conf" {
		t.Errorf("%+v", e)
	}
}

// An engine that knows shims is told to use ours, an older one the command line.
func TestRegistration(t *testing.T) {
	for _, tc := range []struct{ name, version, want string }{
		{"docker", "Docker version 20.10.24+dfsg1", `"path": "/x/agentsafe"`},
		{"docker", "Docker version 29.1.0", `"runtimeType": "io.containerd.agentsafe.v2"`},
		{"docker", "Docker version dev", `"path"`},
		{"containerd", "containerd v2.4.2", `runtime_type = "io.containerd.agentsafe.v2"`},
		{"podman", "podman version 4.3.1", `"/x/agentsafe"`},
		{"cri-o", "crio version 1.30", `runtime_path = "/x/agentsafe"`},
	} {
		e := EngineFacts{Name: tc.name, Version: tc.version, ConfigPath: "/etc/" + tc.name}
		if got := registration(e, "/x/agentsafe"); !strings.Contains(got, tc.want) || !strings.Contains(got, e.ConfigPath) {
			t.Errorf("%s: %s: got %q, want it to name %s", tc.name, tc.version, got, tc.want)
		}
	}
}
