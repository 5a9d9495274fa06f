package attacks

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// A descriptor of a host directory that the engine has leaked, taken as working directory. Seen with the check of getcwd
// removed: the secret.
func TestAttack_CVE_2024_21626_CwdFd(t *testing.T) {
	a := open(t, "none")
	dir, err := os.Open(filepath.Dir(a.marker))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	look := "cat marker ../../../../../../../.." + a.marker
	b := a.up(t, nil, "sleep", "1000")
	for fd := range 12 {
		cwd := fmt.Sprintf("/proc/self/fd/%d", fd)
		bundle := a.bundle(t, all(harness.Sh(look), func(s *specs.Spec) { s.Process.Cwd = cwd }), nil)
		for _, args := range [][]string{
			{"run", "--bundle", bundle.Dir, bundle.ID}, {"exec", "--cwd", cwd, b.ID, "sh", "-c", look},
		} {
			// The engine may itself have leaked a descriptor to us.
			a.safe(t, box.Run(t, harness.Cmd{Args: a.args(args...), Files: []*os.File{dir, dir, dir}}))
		}
	}
}

// The working directory leads out by a symlink, or through /proc/1/root.
func TestAttack_CwdOutside(t *testing.T) {
	for _, a := range everyWay(t, "none") {
		for _, cwd := range []string{"/out", "/up", "/proc/1/root", "/proc/self/cwd/../..", "/proc/1/cwd"} {
			r := a.run(t, all(harness.Sh("pwd; cat marker .."+a.marker), func(s *specs.Spec) { s.Process.Cwd = cwd }), func(rootfs string) {
				link(t, filepath.Dir(a.marker), rootfs+"/out")
				link(t, strings.Repeat("../", 20)+filepath.Dir(a.marker), rootfs+"/up")
			})
			a.safe(t, r)
		}
	}
}

// An image whose entry point makes the kernel run /proc/self/exe: whatever that is, it must not be the host's program,
// and nobody may be able to write to it. The seals have a test of their own in runtime/initproc.
func TestAttack_CVE_2019_5736_ProcSelfExe(t *testing.T) {
	for _, a := range everyWay(t, "none") {
		_, ours := harness.Peers(t)
		before := sum(t, ours.Path)
		spoil := func(rootfs string) {
			write(t, rootfs+"/evil", "#!/proc/self/exe\n", 0o755)
			link(t, "/proc/self/exe", rootfs+"/link")
		}
		for _, entry := range []string{"/evil", "/link"} {
			r := a.run(t, func(s *specs.Spec) { s.Process.Args = []string{entry, "--version"} }, spoil)
			if r.Exit == 0 || strings.Contains(r.Stdout, "agentsafe version") {
				t.Errorf("%s ran the runtime:\n%v", entry, r)
			}
		}
		b := a.up(t, func(s *specs.Spec) { addCaps(s, "CAP_SYS_PTRACE") }, "sh", "-c", "intruder hold > /log")
		for range 20 {
			a.do(t, "exec", b.ID, "/proc/self/exe")
		}
		if log, _ := os.ReadFile(b.Rootfs() + "/log"); strings.Contains(string(log), "wrote to") {
			t.Errorf("%s", log)
		}
		if sum(t, ours.Path) != before {
			t.Error("the runtime's program was changed")
		}
	}
}

func sum(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}

// pid 1 with CAP_SYS_PTRACE watches for processes that join the container and looks through their root and working
// directory. Seen with the child born into the pid namespace before it has left the host's mounts: the secret, within
// a few tries.
func TestAttack_CVE_2016_9962_ExecRoot(t *testing.T) {
	for _, a := range everyWay(t, "none") {
		b := a.up(t, func(s *specs.Spec) { addCaps(s, "CAP_SYS_PTRACE") }, "sh", "-c", "intruder peek "+a.marker+" > /log")
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
			r := a.do(t, "exec", b.ID, "true")
			if log, _ := os.ReadFile(b.Rootfs() + "/log"); len(log) > 0 {
				t.Fatalf("pid 1 says: %s", log)
			}
			if r.Exit != 0 {
				t.Fatalf("want success:\n%v", r)
			}
		}
	}
}

// Nothing but the three standard descriptors and those that were asked for crosses into the container. Seen with
// close_range removed: all that the engine had leaked.
func TestAttack_LeakedDescriptors(t *testing.T) {
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	many := make([]*os.File, 20)
	for i := range many {
		many[i] = dir
	}
	for _, profile := range []string{"", "none"} {
		a := open(t, profile)
		up := a.up(t, nil, "sleep", "1000")
		for _, preserve := range []int{0, 2} {
			b := a.bundle(t, func(s *specs.Spec) { s.Process.Args = []string{"intruder", "fds"} }, nil)
			for _, args := range [][]string{
				{"run", "--preserve-fds", fmt.Sprint(preserve), "--bundle", b.Dir, b.ID},
				{"exec", "--preserve-fds", fmt.Sprint(preserve), up.ID, "intruder", "fds"},
			} {
				r := box.Run(t, harness.Cmd{Args: a.args(args...), Files: many})
				if lines := strings.Count(r.Stdout, "\n"); r.Exit != 0 || lines != 3+preserve+1 {
					t.Errorf("profile %q, %v: want %d descriptors:\n%v", profile, args[0], 3+preserve, r)
				}
			}
		}
	}
}

// Inheritable capabilities turn into permitted ones in a program with file capabilities. Seen with Inheritable copied
// from Permitted: the container and both execs have them.
func TestAttack_CVE_2022_29162_InheritableCaps(t *testing.T) {
	for _, profile := range []string{"", "none"} {
		for _, a := range everyWay(t, profile) {
			script := "grep -E 'Cap(Inh|Amb)' /proc/self/status"
			b := a.up(t, nil, "sleep", "1000")
			caps := []string{"exec", b.ID, "sh", "-c", script}
			more := []string{"exec", "--cap", "CAP_KILL", b.ID, "sh", "-c", script}
			for name, r := range map[string]harness.Result{
				"run": a.run(t, harness.Sh(script), nil), "exec": a.do(t, caps...), "exec --cap": a.do(t, more...),
			} {
				if r.Exit != 0 || strings.Count(r.Stdout, "0000000000000000") != 2 {
					t.Errorf("profile %q, %s:\n%v", profile, name, r)
				}
			}
		}
	}
}

// A user whose name is a number: only numbers are taken, and the image's passwd file has no say.
func TestAttack_CVE_2016_3697_NumericUserName(t *testing.T) {
	a := open(t, "none")
	b := a.up(t, nil, "sleep", "1000")
	write(t, b.Rootfs()+"/etc/passwd", "1000:x:0:0:root:/root:/bin/sh\nroot:x:0:0::/:/bin/sh\n", 0o644)
	write(t, b.Rootfs()+"/etc/group", "1000:x:0:1000\n", 0o644)
	if r := a.must(t, "exec", "--user", "1000:1000", b.ID, "id", "-u"); strings.TrimSpace(r.Stdout) != "1000" {
		t.Errorf("uid %s", r.Stdout)
	}
	for _, user := range []string{"root", "1000:root", "-1", "4294967295", "4294967296", "0x0", " 0", "+1", "1 ", "1:", ":1"} {
		if r := a.do(t, "exec", "--user", user, b.ID, "id"); r.Exit == 0 {
			t.Errorf("--user %q accepted:\n%v", user, r)
		}
	}
}

// Without pivot_root a second chroot gets out of the first. Seen with the root not moved over /: the secret.
func TestAttack_NoPivotChrootEscape(t *testing.T) {
	a := open(t, "none")
	for _, propagation := range []string{"", "private", "rshared"} {
		b := a.bundle(t, func(s *specs.Spec) {
			s.Process.Args, s.Linux.RootfsPropagation = []string{"intruder", "chroot", a.marker}, propagation
		}, nil)
		for _, args := range [][]string{{"run", "--no-pivot"}, {"run"}} {
			r := a.do(t, append(args, "--bundle", b.Dir, b.ID)...)
			a.safe(t, r)
			if !strings.Contains(r.Stdout, "intruder: open") {
				t.Errorf("the attack did not get as far as it should:\n%v", r)
			}
		}
	}
}

// A startContainer hook is a program of the container's file system, that is of the image. Seen with it run as any
// other hook, in the container's mount namespace alone: all capabilities of the host's root.
func TestAttack_StartContainerHookOfTheImage(t *testing.T) {
	for _, a := range everyWay(t, "none") {
		b := a.bundle(t, func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/hook", Args: []string{"hook"}}}}
		}, func(rootfs string) {
			write(t, rootfs+"/hook", "#!/bin/sh\nexec /bin/intruder caps > /log\n", 0o755)
		})
		r := a.do(t, "run", "--bundle", b.Dir, b.ID)
		log, err := os.ReadFile(b.Rootfs() + "/log")
		if err != nil {
			t.Fatal(err, r)
		}
		if !strings.Contains(string(log), "pid 2 CapEff a80425fb\n") {
			t.Errorf("the hook says %q, want the container's own pids and capabilities", log)
		}
	}
}

// createContainer hooks are the host's programs, also where the root file system is attached over / before they run.
// Seen with them looked up after setns(2), which moves the root: the image's program ran as the host's root.
func TestAttack_CreateContainerHookOfTheImage(t *testing.T) {
	for _, propagation := range []string{"", "rshared", "shared", "private", "unbindable"} {
		for _, pivot := range [][]string{nil, {"--no-pivot"}} {
			a := open(t, "none")
			hook := filepath.Join(box.TempDir(t), "hook")
			b := a.bundle(t, func(s *specs.Spec) {
				s.Linux.RootfsPropagation = propagation
				s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: hook, Args: []string{"hook"}}}}
			}, func(rootfs string) {
				write(t, rootfs+hook, "#!/bin/sh\n/bin/touch /owned "+a.marker+".owned\n", 0o755)
			})
			write(t, hook, "#!/bin/sh\nexit 0\n", 0o755)
			r := a.do(t, append(append([]string{"run"}, pivot...), "--bundle", b.Dir, b.ID)...)
			if _, err := os.Stat(b.Rootfs() + "/owned"); err == nil {
				t.Errorf("propagation %q, %v: the image's program was the hook", propagation, pivot)
			}
			if r.Exit != 0 {
				t.Errorf("propagation %q, %v:\n%v", propagation, pivot, r)
			}
		}
	}
}
