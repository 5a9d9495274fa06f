package attacks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// hostNull is the host's null device as it ought to be; what an attack makes of it is put right when the test ends.
func hostNull(t *testing.T) (changed func() bool) {
	t.Helper()
	var want unix.Stat_t
	if err := unix.Stat(os.DevNull, &want); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Chmod(os.DevNull, want.Mode&0o7777)             //nolint:errcheck // the test has failed in that case
		unix.Chown(os.DevNull, int(want.Uid), int(want.Gid)) //nolint:errcheck // likewise
	})
	return func() bool {
		var st unix.Stat_t
		return unix.Stat(os.DevNull, &st) != nil || st.Mode != want.Mode || st.Uid != want.Uid || st.Gid != want.Gid
	}
}

// The standard streams of most containers are the null device, and so is what masks files of proc. Root in a container
// owns the host's node as well as the host's root does, unless the way that leads to it is read-only: a mode of 0 would
// stop everybody else on the host. Seen with the caller's own device handed on, and with a mask that can be written: the
// host's has the new mode and group.
func TestAttack_ModeOfHostDevice(t *testing.T) {
	changed := hostNull(t)
	const script = "for f in /proc/self/fd/0 /dev/stdin /proc/keys /proc/timer_list; do chmod 0777 $f; chown 0:7 $f; done 2>/dev/null\n" +
		"cat /dev/stdin && echo it > /dev/stdin && readlink /proc/self/fd/0"
	for _, profile := range []string{"", "none"} {
		for _, a := range everyWay(t, profile) {
			b := a.up(t, nil, "sleep", "1000")
			for name, r := range map[string]harness.Result{
				"run": a.run(t, harness.Sh(script), nil), "exec": a.do(t, "exec", b.ID, "sh", "-c", script),
			} {
				if r.Exit != 0 || r.Stdout != "/dev/null\n" {
					t.Errorf("profile %q, %s: want a null device of the container's own:\n%v", profile, name, r)
				}
				if changed() {
					t.Fatalf("profile %q, %s: the host's null device was changed:\n%v", profile, name, r)
				}
			}
			// With nothing that is a null device in its place, the host's is what is left.
			for _, spoil := range []string{"rm /dev/null", "rm -f /dev/null; mkfifo /dev/null", "rm /dev/null; ln -s /etc/passwd /dev/null"} {
				a.must(t, "exec", b.ID, "sh", "-c", spoil)
				r := a.do(t, "exec", b.ID, "sh", "-c", "(chmod 0777 /proc/self/fd/0; chown 0:7 /proc/self/fd/0) 2>&-; cat")
				if r.Exit != 0 || r.Stdout != "" || changed() {
					t.Errorf("profile %q, after %q: changed %t:\n%v", profile, spoil, changed(), r)
				}
			}
		}
	}
}

// A volume's mount point is a symlink of the image into proc: there it would hide what is masked, and answer in the
// kernel's place. Seen with the check taken out: the container starts, with the volume over its /proc.
func TestAttack_CVE_2019_16884_LinkIntoProc(t *testing.T) {
	for _, profile := range []string{"", "none"} {
		for _, a := range everyWay(t, profile) {
			for _, to := range []string{"/proc", "proc/1/attr", "/proc/self/attr", "/proc/sys/kernel", "../../../proc/bus"} {
				b := a.bundle(t, func(s *specs.Spec) {
					s.Mounts = append(s.Mounts, specs.Mount{Destination: "/volume", Type: "bind", Source: "/usr", Options: []string{"rbind", "ro"}})
				}, func(rootfs string) { link(t, to, rootfs+"/volume") })
				r := a.do(t, "run", "--bundle", b.Dir, b.ID)
				a.refused(t, r, "/volume")
			}
		}
	}
}

// listens starts a program of a name that listens on a socket until the test ends.
func listens(t *testing.T, name, socket string) {
	t.Helper()
	attacker, err := program("intruder")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(box.TempDir(t), name)
	if out, err := exec.Command("cp", attacker, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	engine := exec.Command(file, "listen", socket)
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		engine.Process.Kill() //nolint:errcheck // gone is what we want
		engine.Wait()         //nolint:errcheck // likewise
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Lstat(socket); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the stand-in does not listen")
		}
	}
}

// A program with the name of an engine listens on a socket of another name. Seen with the look at who listens taken out:
// the socket, or the directory that it is in, is mounted. A socket that no engine holds is the task's business.
func TestAttack_EngineSocketUnderAnotherName(t *testing.T) {
	a := open(t, "")
	for name, refused := range map[string]bool{"dockerd": true, "database": false} {
		socket := filepath.Join(box.TempDir(t), "deep/er/api")
		listens(t, name, socket)
		other := filepath.Join(box.TempDir(t), "same")
		if err := os.Link(socket, other); err != nil {
			t.Fatal(err)
		}
		for _, source := range []string{socket, other, filepath.Dir(socket), filepath.Dir(filepath.Dir(socket))} {
			r := a.run(t, func(s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: "/v", Type: "bind", Source: source, Options: []string{"rbind"}})
			}, nil)
			if refused {
				a.refused(t, r, "dockerd", strings.TrimPrefix(socket, "/"), "host: {mounts: [")
			} else if r.Exit != 0 {
				t.Errorf("%s: want success:\n%v", source, r)
			}
		}
	}
}

// A filter that ends init's own process where it would report a failure, or where it executes the program, must not
// look like success: whoever waits for the start as its parent hears that there was none. Seen with the end of the stream
// taken for it: status 159, as of a program.
func TestAttack_FilterKillsTheReport(t *testing.T) {
	for _, profile := range []string{"", "none"} {
		for _, a := range everyWay(t, profile) {
			// /bad can be executed when it is looked for, and not when it is executed.
			for call, program := range map[string]string{"execve": "/bin/true", "write": "/bad"} {
				b := a.bundle(t, func(s *specs.Spec) {
					s.Process.Args = []string{program}
					s.Process.NoNewPrivileges = true
					s.Linux.Seccomp = &specs.LinuxSeccomp{
						DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{call}, Action: specs.ActKillProcess}},
					}
				}, func(rootfs string) { write(t, rootfs+"/bad", "#!/no/such/interpreter\n", 0o755) })
				r := a.do(t, "run", "--bundle", b.Dir, b.ID)
				if r.Exit != 1 || !strings.Contains(r.Stderr, "before it executed the program: signal: bad system call") {
					t.Errorf("profile %q, %s:\n%v", profile, call, r)
				}
				a.must(t, "delete", "--force", b.ID)
			}
		}
	}
}
