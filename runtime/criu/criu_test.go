package criu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/replace"
)

// follows reports whether args have want, one after the other.
func follows(args []string, want ...string) bool {
	for i := range args {
		if i+len(want) <= len(args) && slices.Equal(args[i:i+len(want)], want) {
			return true
		}
	}
	return false
}

// outside is the same at both ends of a checkpoint.
func outside() External {
	return External{
		Binds: []Bind{{"/etc/hosts", "/srv/hosts"}}, Network: "4026532281",
		Streams: []string{"", "pipe:[77]", "pipe:[77]"},
	}
}

func TestPlanDump(t *testing.T) {
	o := Options{Images: "/i", LeaveRunning: true, TCPEstablished: true, FileLocks: true}
	d := &Dump{Options: o, External: outside(), PID: 42, Root: "/r", Freezer: "/sys/fs/cgroup/x", Unified: true}
	d.Streams[0] = "file[1f:9a]"
	args := PlanDump(d)
	for _, want := range [][]string{
		{"--images-dir", "/i", "--work-dir", "/i"},
		{"--tree", "42"},
		{"--root", "/r"},
		{"--leave-running"},
		{"--tcp-established"},
		{"--file-locks"},
		{"--freeze-cgroup", "/sys/fs/cgroup/x"},
		{"--external", "mnt[/etc/hosts]:/etc/hosts"},
		{"--external", "net[4026532281]:agentsafe-network"},
		{"--external", "file[1f:9a]"},
		{"--manage-cgroups=ignore"},
	} {
		if !follows(args, want...) {
			t.Errorf("%q: want %q", args, want)
		}
	}
	if args[0] != "dump" || follows(args, "--shell-job") || follows(args, "--ext-unix-sk") {
		t.Errorf("%q", args)
	}
}

func TestPlanRestore(t *testing.T) {
	r := &Restore{Options: Options{Images: "/i", Work: "/w"}, External: outside(), Root: "/r", PidFile: "p", CgroupRoots: map[string]string{"pids": "/b", "cpu": "/a"}}
	args := PlanRestore(r)
	for _, want := range [][]string{
		{"--images-dir", "/i", "--work-dir", "/w"},
		{"--restore-detached", "--restore-sibling", "--pidfile", "p"},
		{"--external", "mnt[/etc/hosts]:/srv/hosts"},
		// The namespace first; two streams of one pipe are one descriptor.
		{"--inherit-fd", "fd[3]:agentsafe-network", "--inherit-fd", "fd[4]:pipe[77]", "--cgroup-root"},
		{"--cgroup-root", "cpu:/a", "--cgroup-root", "pids:/b", "--manage-cgroups=soft"},
	} {
		if !follows(args, want...) {
			t.Errorf("%q: want %q", args, want)
		}
	}
	r.Unified = true
	if args := PlanRestore(r); !follows(args, "--manage-cgroups=ignore") || follows(args, "--cgroup-root") {
		t.Errorf("on the unified hierarchy: %q", args)
	}
}

// TestRun_FirstError: of CRIU's log the first error is told, which is the cause of the others.
func TestRun_FirstError(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "criu")
	text := "#!/bin/sh\nprintf '(00.1) Warn  (x.c:1): odd\\n(00.2) Error (criu/vdso.c:300): vdso: Not all symbols\\n(00.3) Error (y.c:2): Dumping FAILED.\\n' >" + dir + "/dump.log\nexit 1\n"
	if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	o := &Options{Program: program, Images: dir}
	err := Run(t.Context(), o, o.common("dump"), Start{})
	if err == nil || !strings.Contains(err.Error(), "exit status 1: vdso: Not all symbols (") {
		t.Errorf("got %v", err)
	}
	o.Program = "/nosuch/criu"
	if err := Run(t.Context(), o, o.common("restore"), Start{}); err == nil || !strings.Contains(err.Error(), "/nosuch/criu") {
		t.Errorf("without a program: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o.Program = program
	if err := Run(ctx, o, o.common("dump"), Start{}); err == nil {
		t.Error("no error once the caller has gone")
	}
}

// TestAttack_ImagesOfAnother: who can write images says what is restored as root.
func TestAttack_ImagesOfAnother(t *testing.T) {
	dir := t.TempDir()
	f, err := OpenImages(dir)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenImages(dir); err == nil {
		t.Error("images that everybody can write to are taken")
	}
	// Logs are written, and a script executed, in the other directory: nothing is started there.
	o := &Options{Program: "/bin/true", Images: t.TempDir(), Work: dir}
	if err := Run(t.Context(), o, o.common("dump"), Start{}); err == nil || !strings.Contains(err.Error(), "directory of logs") {
		t.Errorf("logs where everybody can write: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, 1000, 1000); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenImages(dir); err == nil {
			t.Error("another's images are taken")
		}
	}
}

func TestMeta(t *testing.T) {
	dir, err := OpenImages(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := ReadMeta(dir); err == nil || !strings.Contains(err.Error(), "not a checkpoint of agentsafe") {
		t.Errorf("without: %v", err)
	}
	m := &Meta{Streams: []string{"", "pipe:[7]", "file[1:2]"}, EmptyNetwork: true}
	if err := WriteMeta(dir, m); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadMeta(dir); err != nil || !slices.Equal(got.Streams, m.Streams) || !got.EmptyNetwork {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{
		`{}`, `{"streams":["",""]}`, `{"streams":["","","tty:[1]"]}`, `{"streams":["","","/etc/shadow"]}`,
		`{"streams":["","pipe:[1]]:fd[9","` + strings.Repeat("x", 5000) + `"]}`,
	} {
		if err := replace.File(dir, metaFile, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadMeta(dir); err == nil {
			t.Errorf("%s: got %+v", bad, got)
		}
	}
}

// TestStreams: what comes from outside is named, what a process finds again by itself is not, and a terminal is refused.
func TestStreams(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.Stdout, cmd.Stderr = w, file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(w.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Streams(cmd.Process.Pid); err != nil || !slices.Equal(got, []string{"", pipe, ""}) {
		t.Errorf("got %q, %v, want the pipe %s", got, err, pipe)
	}
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	terminal := exec.CommandContext(t.Context(), "sleep", "1000")
	terminal.Stdout = ptmx
	if err := terminal.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := Streams(terminal.Process.Pid); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("a terminal: %q, %v", got, err)
	}
	for _, c := range []*exec.Cmd{cmd, terminal} {
		c.Process.Kill() //nolint:errcheck // gone is what we want
		c.Wait()         //nolint:errcheck // likewise
	}
}

// TestRun_Namespaces: CRIU's script reaches this process, which decides whether it goes on, and leaves nothing behind.
func TestRun_Namespaces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's one")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// The stand-in calls the script as CRIU does; what it is given last is the script.
	program := filepath.Join(t.TempDir(), "criu")
	text := "#!/bin/sh\nfor last; do :; done\nexport CRTOOLS_INIT_PID=4711\nfor a in pre-restore setup-namespaces post-restore; do CRTOOLS_SCRIPT_ACTION=$a \"$last\" || exit 1; done\n"
	if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	o := &Options{Program: program, Images: dir}
	calls := 0
	err := Run(t.Context(), o, o.common("restore"), Start{Namespaces: func(pid int) error {
		calls++
		if pid != 4711 {
			t.Errorf("pid %d", pid)
		}
		return nil
	}})
	if err != nil || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	refused := errors.New("the hook fails")
	if err := Run(t.Context(), o, o.common("restore"), Start{Namespaces: func(int) error { return refused }}); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	o.Program = "/bin/false"
	if err := Run(t.Context(), o, o.common("restore"), Start{Namespaces: func(int) error { return nil }}); err == nil {
		t.Error("no error of a CRIU that ends before")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// FuzzMeta: what lies beside images becomes arguments of a program that runs as root. It names streams and nothing else.
func FuzzMeta(f *testing.F) {
	f.Add([]byte(`{"streams":["","pipe:[7]","file[1f:9a]"],"emptyNetwork":true}`))
	f.Add([]byte(`{"streams":["socket:[1]","pipe:[1]]:x","pipe:[0]"]}`))
	f.Add([]byte(`{"streams":["file[:]","--action-script","pipe:[-1]"]}`))
	name := regexp.MustCompile(`^fd\[[345]\]:((pipe|socket)\[[0-9a-fA-F]+\]|file\[[0-9a-fA-F]+:[0-9a-fA-F]+\])$`)
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, err := OpenImages(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		if err := replace.File(dir, metaFile, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := ReadMeta(dir)
		if err != nil {
			return
		}
		args := PlanRestore(&Restore{External: External{Streams: m.Streams}, Unified: true})
		for i, arg := range args {
			if arg == "--inherit-fd" && !name.MatchString(args[i+1]) {
				t.Errorf("%q gives %q", data, args[i+1])
			}
		}
	})
}
