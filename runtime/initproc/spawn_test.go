package initproc

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// stage is a root file system of a static busybox, opened as a mount.
func stage(t *testing.T) *rootfs.Source {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("probe root: new namespaces and mounts need it")
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("probe busybox-static: " + err.Error())
	}
	dir := t.TempDir()
	for _, d := range []string{"bin", "proc", "dev", "etc"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "bin/sh"), busybox, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	src, err := rootfs.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Tree.Close() })
	return src
}

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// spawn starts a container's first process that runs a shell script, and returns it with what it writes.
func spawn(t *testing.T, change func(in *Create, d *Donation)) (*Child, *os.File) {
	t.Helper()
	root := stage(t)
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close(); null.Close() })
	d := &Donation{}
	d.Add(null)
	d.Add(out)
	d.Add(out)
	host, kid, err := Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	defer kid.Close()
	mount := func(kind, at string) Mount {
		return Mount{Mount: rootfs.Mount{Type: kind, Source: kind, Destination: at}, TreeFD: None, Exists: true, Target: at}
	}
	in := &Create{
		Process: Process{
			Args: []string{"sh", "-c", "true"}, Env: []string{"PATH=/bin"}, Programs: []string{"/bin/sh"}, Cwd: "/", NoNewPrivs: true,
			Caps: &CapSets{}, ListenerFD: None, ConsoleFD: None, Umask: 0o027,
		},
		SyncFD: d.Add(kid), ListenFD: None, RootFD: d.Add(root.Tree), RootPath: root.Path, NullFD: None,
		Propagation: unix.MS_SLAVE, PropagationRec: true, Hostname: "stage",
		Mounts: []Mount{mount("proc", "/proc"), mount("tmpfs", "/dev")}, DevLinks: true,
		Devices: []Device{{Path: "/dev/null", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3, TreeFD: None}},
	}
	if change != nil {
		change(in, d)
	}
	c, err := Spawn(PlanCreate(in), host, &SpawnOptions{Donation: d, CloneFlags: newNamespaces})
	if err != nil {
		t.Fatal(err)
	}
	// A child that waits for ever must fail the test and not hold it up.
	watch := time.AfterFunc(20*time.Second, func() { c.Kill() }) //nolint:errcheck // see below
	t.Cleanup(func() {
		watch.Stop()
		c.Kill() //nolint:errcheck // gone is what we want
		c.Wait() //nolint:errcheck // likewise
		c.Close()
	})
	return c, out
}

func script(text string) func(*Create, *Donation) {
	return func(in *Create, _ *Donation) { in.Args = []string{"sh", "-c", text} }
}

// begin lets the child go on and start.
func (c *Child) begin() error {
	// Go fails if the child is gone already, and says why if that is known.
	for range 2 {
		if err := c.Go(); err != nil {
			return err
		}
	}
	return c.WaitExec()
}

// finish lets the child go on to the end and returns what it wrote.
func finish(t *testing.T, c *Child, out *os.File) string {
	t.Helper()
	if err := c.begin(); err != nil {
		t.Fatal(err)
	}
	st, err := c.Wait()
	data, _ := io.ReadAll(io.NewSectionReader(out, 0, 1<<20))
	if err != nil || st != 0 {
		t.Fatalf("%v, %v: %s", st, err, data)
	}
	return string(data)
}

func TestSpawnInNamespaces(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	c, out := spawn(t, func(in *Create, _ *Donation) {
		in.Args = []string{"sh", "-c", `echo pid $$ host $(hostname) umask $(umask) uid $(id -u):$(id -g):$(id -G)
			grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls /; cut -d" " -f5 /proc/self/mountinfo; ls -l /dev/null | cut -c1-10; pwd; ls /proc/self/fd | wc -l`}
		in.UID, in.GID, in.Groups, in.Cwd = 1000, 100, []uint32{7}, "/srv/here"
	})
	want := "pid 1 host stage umask 0027 uid 1000:100:100 7\nNoNewPrivs:\t1\nbin\ndev\netc\nproc\nsrv\n/\n/proc\n/dev\ncrw-rw-rw-\n/srv/here\n4\n"
	got := strings.ReplaceAll(finish(t, c, out), "CapEff:\t0000000000000000\n", "")
	if got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if after, _ := os.ReadFile("/proc/self/mountinfo"); !bytes.Equal(before, after) {
		t.Error("mounts have come out")
	}
}

// What goes wrong is reported with the operation and its errno, wherever it happens.
func TestSpawnReportsFailure(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Create, *Donation)
		what   string
		errno  unix.Errno
	}{
		"program":        {func(in *Create, _ *Donation) { in.Programs = []string{"/bin/gone"} }, `exec "sh"`, unix.ENOENT},
		"not executable": {func(in *Create, _ *Donation) { in.Programs = []string{"/etc"} }, `exec "sh"`, unix.EACCES},
		"cwd":            {func(in *Create, _ *Donation) { in.Cwd = "/bin/sh" }, "look up process.cwd", unix.ENOTDIR},
		"file system":    {func(in *Create, _ *Donation) { in.Mounts[1].Type = "nonesuch" }, "mount nonesuch on /dev: fsopen", unix.ENODEV},
		"option": {func(in *Create, _ *Donation) {
			in.Mounts[1].Options = []rootfs.Option{{Key: "size", Value: "many"}}
		}, "mount tmpfs on /dev: option size", unix.EINVAL},
		"descriptor": {func(in *Create, _ *Donation) { in.Join = []Join{{99, unix.CLONE_NEWNET}} }, "join network namespace", unix.EBADF},
		"rlimit":     {func(in *Create, _ *Donation) { in.Rlimits = []Rlimit{{Resource: 99, SpecIndex: 4}} }, "set process.rlimits[4]", unix.EINVAL},
		"filter":     {func(in *Create, _ *Donation) { in.Seccomp = [][]byte{make([]byte, 8)} }, "install seccomp filter", unix.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			kid, _ := spawn(t, c.change)
			err := kid.begin()
			var f *Failure
			if !errors.As(err, &f) || f.What != c.what || !errors.Is(err, c.errno) {
				t.Errorf("got %v (%+v), want %q: %v", err, f, c.what, c.errno)
			}
		})
	}
}

// A child whose creator goes away ends by itself, wherever it waits.
func TestSpawnEndsWithItsCreator(t *testing.T) {
	for _, held := range []bool{false, true} {
		c, _ := spawn(t, func(in *Create, _ *Donation) { in.HookPoint = held })
		if held {
			if err := c.WaitHooks(); err != nil {
				t.Fatal(err)
			}
		}
		c.Detach()
		done := make(chan struct{})
		go func() {
			c.Wait() //nolint:errcheck // that it ends is the point
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Fatal("it lives on")
		}
	}
}

// A child that somebody kills while it waits is told to have ended, and not of a pipe.
func TestSpawnKilled(t *testing.T) {
	c, _ := spawn(t, func(*Create, *Donation) {})
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	poll := []unix.PollFd{{Fd: int32(c.PidFD.Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors fit
	if n, err := unix.Poll(poll, 60_000); n != 1 || err != nil {
		t.Fatal("it lives on:", n, err)
	}
	if err := c.Go(); !errors.Is(err, ErrNotExecuted) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("error %v", err)
	}
}

// Start: a caller that connects and dies changes nothing; the next one starts; a third one comes too late.
func TestSpawnStart(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	listen, err := Listen(dir, "start")
	if err != nil {
		t.Fatal(err)
	}
	var table *Table
	c, out := spawn(t, func(in *Create, d *Donation) {
		in.ListenFD = d.Add(listen)
		in.Args = []string{"sh", "-c", "echo started; ls -l /proc/self/fd 2>/dev/null | grep -c socket"}
		table = PlanCreate(in).StartTable()
	})
	listen.Close()
	if err := c.Go(); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(); err != nil {
		t.Fatal(err)
	}
	c.Detach()
	if st, err := os.Stat(filepath.Join(dir.Name(), "start")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: %v, %v", st.Mode(), err)
	}
	for range 5 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socketPath(dir, "start")}); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	if err := Start(dir, "start", table); err != nil {
		t.Fatal(err)
	}
	c.Wait() //nolint:errcheck // what it wrote is the point
	if data, _ := os.ReadFile(out.Name()); string(data) != "started\n0\n" {
		t.Errorf("it wrote %q", data)
	}
	if err := Start(dir, "start", table); !errors.Is(err, ErrNotWaiting) {
		t.Errorf("a second start: %v", err)
	}
}

// The standard library moves descriptors that are in the way to numbers above; the program must not be among them.
func TestSpawnWithCrowdedDescriptors(t *testing.T) {
	// Low numbers at high places have to move, all of them.
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, crowd := range []int{0, 30, 70, 100, 200} {
		var held []*os.File
		for range crowd {
			f, err := os.Open("/dev/null")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, f)
		}
		c, out := spawn(t, func(in *Create, d *Donation) {
			for range 40 {
				d.Add(null)
			}
			script("echo here")(in, d)
		})
		if got := finish(t, c, out); got != "here\n" {
			t.Errorf("%d descriptors: %q", crowd, got)
		}
		for _, f := range held {
			f.Close()
		}
	}
}

// TestSpawnExec joins a container through its first process, and is a child of this one.
func TestSpawnExec(t *testing.T) {
	for name, c := range map[string]struct {
		program string
		errno   unix.Errno
		want    string
	}{"good": {"/bin/sh", 0, "stage 2\n"}, "missing": {"/bin/gone", unix.ENOENT, ""}} {
		t.Run(name, func(t *testing.T) {
			first, _ := spawn(t, script("while :; do sleep 1; done"))
			if err := first.begin(); err != nil {
				t.Fatal(err)
			}
			out, err := os.CreateTemp(t.TempDir(), "out")
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			host, kid, err := Socketpair()
			if err != nil {
				t.Fatal(err)
			}
			d := &Donation{}
			for range 3 {
				d.Add(out)
			}
			in := &Exec{
				Process: Process{
					Args: []string{"sh", "-c", "echo $(hostname) $(ls -d /proc/[0-9]* | grep -c -v -w -e /proc/1)"}, Env: []string{"PATH=/bin"},
					Programs: []string{c.program}, Cwd: "/", Caps: &CapSets{}, NoNewPrivs: true, ListenerFD: None, ConsoleFD: None,
				},
				SyncFD: d.Add(kid),
				Join:   []Join{{d.Add(first.PidFD), unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}},
			}
			child, err := Spawn(PlanExec(in), host, &SpawnOptions{Donation: d})
			kid.Close()
			if err != nil {
				t.Fatal(err)
			}
			defer child.Close()
			forker := child.PID
			if err := child.Go(); err != nil {
				t.Fatal(err)
			}
			if err = child.WaitFork(); err == nil {
				err = child.WaitExec()
			}
			var f *Failure
			if c.errno != 0 && (!errors.As(err, &f) || f.Errno != c.errno) || c.errno == 0 && err != nil {
				t.Errorf("got %v, want %v", err, c.errno)
			}
			if child.PID == forker {
				t.Error("still the one that forked")
			}
			if _, err := child.Wait(); err != nil {
				t.Errorf("not a child of this process: %v", err)
			}
			if data, _ := os.ReadFile(out.Name()); c.errno == 0 && !strings.HasPrefix(string(data), "stage ") {
				t.Errorf("it wrote %q", data)
			}
			if pid, err := unix.Wait4(forker, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
				t.Errorf("the one that forked was not reaped: %d, %v", pid, err)
			}
		})
	}
}
