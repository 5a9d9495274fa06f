package container

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

func goodSpec() *specs.Spec {
	s := ExampleSpec(false)
	s.Process.Terminal = false
	return s
}

func TestValidateID(t *testing.T) {
	for _, id := range []string{"a", "A-b_c.d+e", "-x", "+", "_", strings.Repeat("a", 255), "a..b", "1"} {
		if err := ValidateID(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{
		"", ".", "..", ".a", "a/b", "/", "../a", "a\x00", "a\n", "a b", "ä", "a\xff", strings.Repeat("a", 256), "a:b", "a*", "a\\b", "a%2fb",
	} {
		if err := ValidateID(id); !errors.Is(err, ErrInvalidID) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// Each row breaks a good spec; the error must name the field.
func TestValidateSpecNamesTheField(t *testing.T) {
	if err := validateSpec(goodSpec()); err != nil {
		t.Fatal(err)
	}
	huge := strings.Repeat("a", 70<<10)
	hook := func(h specs.Hook) *specs.Hooks { return &specs.Hooks{Poststop: []specs.Hook{{Path: "/ok"}, h}} }
	for field, broken := range map[string][]func(*specs.Spec){
		"ociVersion": {
			func(s *specs.Spec) { s.Version = "" }, func(s *specs.Spec) { s.Version = "2.0.0" }, func(s *specs.Spec) { s.Version = "x" },
		},
		"root.path": {func(s *specs.Spec) { s.Root = nil }, func(s *specs.Spec) { s.Root.Path = "" }},
		"linux":     {func(s *specs.Spec) { s.Linux = nil }},
		"process.args": {
			func(s *specs.Spec) { s.Process.Args = nil }, func(s *specs.Spec) { s.Process.Args = []string{""} },
			func(s *specs.Spec) { s.Process.Args = []string{"a", "b\x00"} },
		},
		"process.cwd": {
			func(s *specs.Spec) { s.Process.Cwd = "" }, func(s *specs.Spec) { s.Process.Cwd = "tmp" }, func(s *specs.Spec) { s.Process.Cwd = "../x" },
		},
		"process": {
			func(s *specs.Spec) { s.Process.Cwd = "/a\x00" }, func(s *specs.Spec) { s.Process.ApparmorProfile = "\x00" },
			func(s *specs.Spec) { s.Process.SelinuxLabel = "a\x00b" },
		},
		"process.env[1]": {func(s *specs.Spec) { s.Process.Env[1] = "A=\x00" }},
		"linux.namespaces[1].type": {
			func(s *specs.Spec) { s.Linux.Namespaces[1].Type = "nope" }, func(s *specs.Spec) { s.Linux.Namespaces[1].Type = "" },
			func(s *specs.Spec) { s.Linux.Namespaces[1].Type = s.Linux.Namespaces[0].Type },
		},
		"linux.namespaces[0].path": {
			func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "proc/1/ns/net" }, func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/" + huge },
		},
		"linux.namespaces": {func(s *specs.Spec) { s.Linux.Namespaces = nil }},
		"hostname": {
			func(s *specs.Spec) { s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}} },
			func(s *specs.Spec) { s.Hostname = strings.Repeat("a", 65) },
		},
		"domainname":        {func(s *specs.Spec) { s.Domainname = huge }},
		"linux.timeOffsets": {func(s *specs.Spec) { s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"monotonic": {Secs: 1}} }},
		"linux.uidMappings": {func(s *specs.Spec) { s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: 1}} }},
		"linux.maskedPaths[0]": {
			func(s *specs.Spec) { s.Linux.MaskedPaths[0] = "proc" }, func(s *specs.Spec) { s.Linux.MaskedPaths[0] = "/a\x00b" },
		},
		"linux.readonlyPaths[1]":    {func(s *specs.Spec) { s.Linux.ReadonlyPaths[1] = "" }},
		"hooks.poststop[1].path":    {func(s *specs.Spec) { s.Hooks = hook(specs.Hook{Path: "bin/x"}) }, func(s *specs.Spec) { s.Hooks = hook(specs.Hook{}) }},
		"hooks.poststop[1].timeout": {func(s *specs.Spec) { s.Hooks = hook(specs.Hook{Path: "/x", Timeout: new(0)}) }, func(s *specs.Spec) { s.Hooks = hook(specs.Hook{Path: "/x", Timeout: new(-1)}) }},
	} {
		for i, b := range broken {
			s := goodSpec()
			b(s)
			err := validateSpec(s)
			var inv *InvalidError
			if !errors.As(err, &inv) || inv.Field != field && inv.Field != field+"[1]" {
				t.Errorf("%s, row %d: %v", field, i, err)
			}
		}
	}
}

func TestPlanProcessNamesTheField(t *testing.T) {
	root := openTemp(t)
	for field, broken := range map[string]func(*specs.Process){
		"process.consoleSize": func(p *specs.Process) { p.ConsoleSize = &specs.Box{Height: 65536} },
		"process.oomScoreAdj": func(p *specs.Process) { p.OOMScoreAdj = new(1001) },
		"process.capabilities.ambient[1]": func(p *specs.Process) {
			p.Capabilities.Ambient = []string{"CAP_KILL", "CAP_NOPE"}
		},
		"process.capabilities.effective[0]": func(p *specs.Process) { p.Capabilities.Effective = []string{""} },
		"process.rlimits[0].type":           func(p *specs.Process) { p.Rlimits[0].Type = "RLIMIT_NOPE" },
		"process.rlimits[1].type":           func(p *specs.Process) { p.Rlimits = append(p.Rlimits, p.Rlimits[0]) },
		"process.rlimits[0]":                func(p *specs.Process) { p.Rlimits[0].Soft = p.Rlimits[0].Hard + 1 },
		"process.scheduler.policy":          func(p *specs.Process) { p.Scheduler = &specs.Scheduler{Policy: "SCHED_NOPE"} },
		"process.scheduler.flags[0]": func(p *specs.Process) {
			p.Scheduler = &specs.Scheduler{Policy: specs.SchedOther, Flags: []specs.LinuxSchedulerFlag{"nope"}}
		},
		"process.ioPriority.class": func(p *specs.Process) { p.IOPriority = &specs.LinuxIOPriority{Class: "nope"} },
		"process.ioPriority.priority": func(p *specs.Process) {
			p.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 8}
		},
	} {
		p := goodSpec().Process
		broken(p)
		_, err := planProcess(p, root)
		var inv *InvalidError
		if !errors.As(err, &inv) || inv.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	p := goodSpec().Process
	p.Capabilities.Bounding = []string{"cap_kill", "CAP_CHECKPOINT_RESTORE"}
	out, err := planProcess(p, root)
	if err != nil || out.Caps.Bounding != 1<<5|1<<40 || out.Umask != 0o022 {
		t.Errorf("%+v, %v", out.Caps, err)
	}
	// CVE-2022-29162: nothing inheritable that was not asked for, and no capabilities at all without the field.
	if out.Caps.Inheritable != 0 || out.Caps.Ambient != 0 {
		t.Errorf("inheritable %#x, ambient %#x", out.Caps.Inheritable, out.Caps.Ambient)
	}
	p.Capabilities = nil
	if out, err := planProcess(p, root); err != nil || out.Caps == nil || out.Caps.Permitted != 0 {
		t.Errorf("without capabilities: %+v, %v", out.Caps, err)
	}
}

func TestPlanSysctls(t *testing.T) {
	own := map[specs.LinuxNamespaceType]bool{}
	good := map[string]string{"net.ipv4.ip_forward": "1", "kernel.shmmax": "1", "fs.mqueue.msg_max": "2", "net/ipv4/conf/eth0.100/rp_filter": "0"}
	out, err := planSysctls(good, own)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, s := range out {
		keys = append(keys, s.Key)
	}
	if want := []string{"fs/mqueue/msg_max", "kernel/shmmax", "net/ipv4/ip_forward", "net/ipv4/conf/eth0.100/rp_filter"}; !slices.Equal(keys, want) {
		t.Errorf("got %q, want %q", keys, want)
	}
	for _, key := range []string{
		"kernel.core_pattern", "net", "net.", "net..x", "net/../kernel/core_pattern", "/net/x", "net/x/", "net.x+kernel.y", "vm.x", "",
		"fs.mqueue", "kernel.shmmax.x", "net/\x00", "net/a\nb", "kernel.shm_rmid_forced/../core_pattern",
	} {
		if _, err := planSysctls(map[string]string{key: "1"}, own); err == nil {
			t.Errorf("%q accepted", key)
		}
	}
	host := map[specs.LinuxNamespaceType]bool{specs.NetworkNamespace: true, specs.IPCNamespace: true, specs.UTSNamespace: true}
	for key := range good {
		if _, err := planSysctls(map[string]string{key: "1"}, host); err == nil {
			t.Errorf("%q accepted in the host's namespace", key)
		}
	}
}

func TestPlanDevices(t *testing.T) {
	mode := os.FileMode(0o4777)
	out, err := planDevices([]specs.LinuxDevice{
		{Path: "/dev/null", Type: "c", Major: 1, Minor: 3, FileMode: &mode, UID: new(uint32(5))},
		{Path: "dev/x", Type: "p", Major: -1},
		{Path: "/dev/sda", Type: "b", Major: 4095, Minor: 1<<20 - 1},
	})
	if err != nil || len(out) != len(defaultDevices)+2 {
		t.Fatalf("%d devices, %v", len(out), err)
	}
	if d := out[0]; d.Path != "/dev/null" || d.Mode != unix.S_IFCHR|0o777 || d.UID != 5 {
		t.Errorf("a device of the spec does not replace the default one: %+v", d)
	}
	if d := out[len(out)-2]; d.Path != "/dev/x" || d.Mode&unix.S_IFMT != unix.S_IFIFO {
		t.Errorf("%+v", d)
	}
	if defaultDevices[0].UID != 0 {
		t.Error("the table of default devices was changed")
	}
	for field, d := range map[string]specs.LinuxDevice{
		"linux.devices[0].path": {Path: "", Type: "c"}, "linux.devices[0].path ": {Path: "/a\x00", Type: "c"}, "linux.devices[0].path  ": {Path: "/..", Type: "c"},
		"linux.devices[0].type": {Path: "/dev/x", Type: "x"}, "linux.devices[0].type ": {Path: "/dev/x"},
		"linux.devices[0]": {Path: "/dev/x", Type: "c", Major: 4096}, "linux.devices[0] ": {Path: "/dev/x", Type: "b", Minor: -1},
	} {
		_, err := planDevices([]specs.LinuxDevice{d})
		var inv *InvalidError
		if !errors.As(err, &inv) || inv.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestIDMap(t *testing.T) {
	if _, err := idMap("f", nil); err == nil {
		t.Error("no mappings accepted")
	}
	if _, err := idMap("f", make([]specs.LinuxIDMapping, 341)); err == nil {
		t.Error("341 mappings accepted")
	}
	if _, err := idMap("f", []specs.LinuxIDMapping{{Size: 1}, {}}); err == nil || !strings.HasPrefix(err.Error(), "f[1].size") {
		t.Errorf("size 0: %v", err)
	}
}

func TestOpenNamespaceChecksTheKind(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/proc/self/ns/net", fifo, dir, "/dev/null", "/dev/zero", filepath.Join(dir, "gone"), "/proc/self/ns/pid_for_children"} {
		f, err := openNamespace(path, unix.CLONE_NEWUTS)
		if err == nil {
			f.Close()
			t.Errorf("%s accepted as a uts namespace", path)
		}
	}
	f, err := openNamespace("/proc/self/ns/uts", unix.CLONE_NEWUTS)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func openTemp(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// FuzzLoadSpec: whatever config.json holds, loading ends with a spec that the planners can take, or an error.
func FuzzLoadSpec(f *testing.F) {
	good, err := json.Marshal(goodSpec())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, s := range []string{`null`, `{}`, `[]`, `{"linux":{}}`, `{"ociVersion":"1.0.0","root":{"path":"x"},"linux":{"namespaces":[{"type":"mount"}]},"process":{}}`} {
		f.Add([]byte(s))
	}
	for _, spec := range engineSpecs(f) {
		f.Add(spec)
	}
	dir := openTemp(f)
	empty := openTemp(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir.Name(), specConfig), data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := LoadSpec(dir)
		if err != nil {
			if !strings.Contains(err.Error(), specConfig) {
				t.Fatalf("the error does not name the file: %v", err)
			}
			return
		}
		if s.Process != nil {
			if p, err := planProcess(s.Process, empty); err == nil && (len(p.Programs) == 0 || !strings.HasPrefix(p.Cwd, "/")) {
				t.Fatalf("%+v", p)
			}
		}
		planSysctls(s.Linux.Sysctl, nil) //nolint:errcheck // must not crash
		planDevices(s.Linux.Devices)     //nolint:errcheck // likewise
	})
}

// What is asked for and not done is an error.
func TestOpenSourcesRefusesIDMap(t *testing.T) {
	plan, err := rootfs.PlanMounts([]specs.Mount{{Destination: "/a", Type: "tmpfs", Source: "tmpfs", Options: []string{"idmap"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = openSources(plan, openTemp(t))
	var inv *InvalidError
	if !errors.As(err, &inv) || inv.Field != "mounts[0]" {
		t.Errorf("got %v", err)
	}
}

// What stands on proc answers in the kernel's place: proc alone may, and files as lxcfs makes them below it.
func TestRefuseOverProc(t *testing.T) {
	open := func(path string) *rootfs.Source { return &rootfs.Source{Tree: openPath(t, path)} }
	folder, proc := open(t.TempDir()), open("/proc")
	for _, tt := range []struct {
		destination, kind string
		src               *rootfs.Source
		refused           bool
	}{
		{"/proc", "bind", folder, true},
		{"/proc", "bind", proc, false},
		{"/proc", "proc", nil, false},
		{"/proc", "tmpfs", nil, true},
		{"/proc/version", "bind", folder, true},
		{"/proc/sys/kernel", "tmpfs", nil, true},
		{"/proc/meminfo", "bind", folder, false},
		{"/processes", "bind", folder, false},
		{"/host/proc", "bind", proc, false},
	} {
		m := rootfs.Mount{Destination: tt.destination, Type: tt.kind, Source: "source", Bind: tt.src != nil}
		if err := refuseOverProc(&m, tt.src); (err != nil) != tt.refused {
			t.Errorf("%s on %s: %v", tt.kind, tt.destination, err)
		}
	}
}

func openPath(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// To wait for a child that the kernel does not let into its own user namespace would be to wait for ever.
func TestOpenNamespacesRefusesOwnUserNamespace(t *testing.T) {
	s := goodSpec()
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/proc/self/ns/user"})
	n, err := openNamespaces(s, nil)
	if err == nil {
		n.close()
	}
	if err == nil || !strings.Contains(err.Error(), "user namespace of the runtime itself") {
		t.Errorf("got %v", err)
	}
}
