package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

type unixStat = syscall.Stat_t

// Parameters that are not a namespace's, or that are spelled so that a check reads another one than the kernel. Seen
// with the list of prefixes alone: the host's core_pattern is |/evil.
func TestAttack_CVE_2022_0811_SysctlSmuggling(t *testing.T) {
	before, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The attack that succeeds must not outlive the test that reports it.
		if after, _ := os.ReadFile("/proc/sys/kernel/core_pattern"); string(after) != string(before) {
			os.WriteFile("/proc/sys/kernel/core_pattern", before, 0) //nolint:errcheck // nothing better to do
		}
	})
	for _, a := range everyWay(t, "none") {
		for _, key := range []string{
			"kernel.core_pattern", "kernel/core_pattern", "kernel.shm_rmid_forced+kernel.core_pattern", "net.ipv4.../kernel/core_pattern",
			"net/../kernel/core_pattern", "net/ipv4/../../kernel/core_pattern", "fs.mqueue/../../kernel/core_pattern", "/kernel/core_pattern",
			"net//ipv4/ip_forward", "net.", "", "vm.overcommit_memory", "fs.suid_dumpable", "kernel.msgmax\nkernel.core_pattern",
			"net/ipv4/ip_forward\x00/../../../kernel/core_pattern", "kernel.hostname/../core_pattern", "user.max_user_namespaces",
		} {
			r := a.run(t, func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{key: "|/evil"} }, nil)
			a.refused(t, r, "linux.sysctl")
		}
		if after, _ := os.ReadFile("/proc/sys/kernel/core_pattern"); string(after) != string(before) {
			t.Fatalf("core_pattern is %q", after)
		}
	}
}

// A namespace that is joined by path may be the host's: what is set in it is set on the host. Seen with namespaces
// judged by their presence alone: the host's value changes.
func TestAttack_HostNamespaceByPath(t *testing.T) {
	for _, a := range everyWay(t, "none") {
		const parameter = "/proc/sys/net/ipv4/conf/lo/proxy_arp" // of the box's own network namespace
		host, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		join := func(kind specs.LinuxNamespaceType, file string) func(*specs.Spec) {
			return func(s *specs.Spec) {
				for i := range s.Linux.Namespaces {
					if s.Linux.Namespaces[i].Type == kind {
						s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", os.Getpid(), file)
					}
				}
			}
		}
		r := a.run(t, all(join(specs.NetworkNamespace, "net"), func(s *specs.Spec) {
			s.Linux.Sysctl = map[string]string{"net.ipv4.conf.lo.proxy_arp": "1"}
		}), nil)
		a.refused(t, r, "linux.sysctl")
		if after, _ := os.ReadFile(parameter); strings.TrimSpace(string(after)) != "0" {
			t.Errorf("%s is %s", parameter, after)
			os.WriteFile(parameter, []byte("0"), 0) //nolint:errcheck // for the next test
		}
		r = a.run(t, all(join(specs.UTSNamespace, "uts"), func(s *specs.Spec) { s.Hostname = "owned" }), nil)
		a.refused(t, r, "hostname")
		if after, _ := os.Hostname(); after != host {
			t.Errorf("the host is called %q", after)
			unix.Sethostname([]byte(host)) //nolint:errcheck // for the next test
		}
	}
}

// Lengths that overflowed another runtime's message to its init.
func TestAttack_CVE_2021_43784_HugeFields(t *testing.T) {
	for _, a := range everyWay(t, "none") {
		huge := strings.Repeat("a", 70<<10)
		for name, c := range map[string]struct {
			mutate func(*specs.Spec)
			word   string
		}{
			"namespace path": {func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/" + huge }, "linux.namespaces[0].path"},
			"mappings": {func(s *specs.Spec) {
				s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
				for i := range uint32(8000) {
					s.Linux.UIDMappings = append(s.Linux.UIDMappings, specs.LinuxIDMapping{ContainerID: i, HostID: i, Size: 1})
				}
				s.Linux.GIDMappings = s.Linux.UIDMappings[:1]
			}, "linux.uidMappings"},
			"cwd":         {func(s *specs.Spec) { s.Process.Cwd = "/" + huge }, "process.cwd"},
			"hostname":    {func(s *specs.Spec) { s.Hostname = huge }, "hostname"},
			"destination": {func(s *specs.Spec) { s.Mounts[0].Destination = "/" + huge }, "mounts[0]"},
			"mask":        {func(s *specs.Spec) { s.Linux.MaskedPaths[0] = "/" + huge }, "mask"},
			"cgroup":      {func(s *specs.Spec) { s.Linux.CgroupsPath = "/" + huge }, "cgroup"},
			"argument":    {func(s *specs.Spec) { s.Process.Args = append(s.Process.Args, strings.Repeat("a", 200<<10)) }, "exec"},
			"program":     {func(s *specs.Spec) { s.Process.Args = []string{"/" + huge} }, "exec"},
		} {
			t.Run(name, func(t *testing.T) { a.refused(t, a.run(t, c.mutate, nil), c.word) })
		}
	}
}

// Ids and cgroup paths that lead out of where they belong.
func TestAttack_DotsInNames(t *testing.T) {
	a := open(t, "none")
	b := a.bundle(t, nil, nil)
	for _, id := range []string{"..", ".", "../x", "a/b", "/etc", "", "a/../../x", "a\nb", "a b", "ä", "-rf", strings.Repeat("a", 256), ".hidden"} {
		for _, args := range [][]string{
			{"create", "--bundle", b.Dir, id}, {"delete", "--force", id}, {"state", id}, {"kill", id, "KILL"}, {"exec", id, "true"}, {"start", id},
		} {
			if r := a.do(t, args...); r.Exit == 0 {
				t.Errorf("accepted:\n%v", r)
			}
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(a.Root)); len(entries) != 1 {
		t.Errorf("beside the state directory: %v", entries)
	}
	for _, path := range []string{"/../../x", "../../x", "/" + box.Tag + "/../../x", "/", "/..", "/.", "/a\x00b"} {
		r := a.run(t, func(s *specs.Spec) { s.Linux.CgroupsPath = path }, nil)
		a.refused(t, r, "cgroup")
	}
}

// A bundle that blocks or never ends must be an error at once, with and without a terminal to prepare for.
func TestAttack_HostileConfig(t *testing.T) {
	a := open(t, "none")
	for name, spoil := range map[string]func(config string) error{
		"fifo": func(config string) error { return unix.Mkfifo(config, 0o644) },
		"zero": func(config string) error { return os.Symlink("/dev/zero", config) },
		"dir":  func(config string) error { return os.Mkdir(config, 0o755) },
		"loop": func(config string) error { return os.Symlink("config.json", config) },
		"gone": func(string) error { return nil },
		"huge": func(config string) error {
			f, err := os.Create(config)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(1 << 40)
		},
		"deep":  func(config string) error { return os.WriteFile(config, []byte(strings.Repeat(`{"a":`, 200000)), 0o644) },
		"empty": func(config string) error { return os.WriteFile(config, nil, 0o644) },
		"null":  func(config string) error { return os.WriteFile(config, []byte("null"), 0o644) },
		"half": func(config string) error {
			return os.WriteFile(config, []byte(`{"ociVersion":"1.0.0","process":{"args":["tr`), 0o644)
		},
	} {
		b := a.bundle(t, nil, nil)
		if err := os.Remove(b.Config()); err != nil {
			t.Fatal(err)
		}
		if err := spoil(b.Config()); err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"run", "create"} {
			t.Run(name+"/"+verb, func(t *testing.T) {
				began := time.Now()
				r := box.Run(t, harness.Cmd{Args: a.args(verb, "--bundle", b.Dir, b.ID), Timeout: 10 * time.Second})
				a.refused(t, r, "config.json")
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		}
		os.RemoveAll(b.Config())
	}
}
