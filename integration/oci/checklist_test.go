package oci

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestPidfdSocket: create and exec hand a pidfd of their process to --pidfd-socket.
func TestPidfdSocket(t *testing.T) {
	_, p := harness.Peers(t)
	d := box.Bare(t, p)
	b := box.Bundle(t, func(s *specs.Spec) { s.Process.Args = []string{"sleep", "1000"} })
	t.Cleanup(func() { d.Do(t, "delete", "--force", b.ID) })
	path := "/run/" + b.ID + "-pidfd"
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	d.Must(t, "create", "--bundle", b.Dir, "--pidfd-socket", path, b.ID)
	if got, want := pidOf(t, receive(t, listener)), d.State(t, b.ID).Pid; got != want {
		t.Errorf("create sends a pidfd of %d, state says %d", got, want)
	}
	d.Must(t, "start", b.ID)
	file := filepath.Join(b.Dir, "exec-pid")
	d.Must(t, "exec", "--detach", "--pidfd-socket", path, "--pid-file", file, b.ID, "sleep", "1000")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := pidOf(t, receive(t, listener)); strconv.Itoa(got) != string(text) {
		t.Errorf("exec sends a pidfd of %d, its pid file says %s", got, text)
	}
}

// receive accepts a connection and takes the descriptor that comes over it.
func receive(t *testing.T, listener *net.UnixListener) *os.File {
	t.Helper()
	conn, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data, control := make([]byte, 64), make([]byte, 64)
	_, n, _, _, err := conn.ReadMsgUnix(data, control)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%d descriptors, %v", len(fds), err)
	}
	f := os.NewFile(uintptr(fds[0]), "pidfd")
	t.Cleanup(func() { f.Close() })
	return f
}

func pidOf(t *testing.T, pidfd *os.File) int {
	t.Helper()
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(pidfd.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(info)) {
		if text, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("no pidfd: %s", info)
	return 0
}

// TestSocketActivation: descriptors of socket activation go to the container's program, which is told, if LISTEN_PID says
// that they are the runtime's; another's LISTEN_FDS that was inherited says nothing.
func TestSocketActivation(t *testing.T) {
	for pid, want := range map[string]string{"$$": "^kept\n1 1\n$", "1": "^\n$"} {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d := plain(t, p)
			b := box.Bundle(t, harness.Sh("[ ! -e /proc/self/fd/3 ] || cat <&3; echo $LISTEN_FDS $LISTEN_PID"))
			args := append([]string{"sh", "-c", "LISTEN_FDS=1 LISTEN_PID=" + pid + ` exec "$@"`, "sh"}, d.Args("run", "--bundle", b.Dir, b.ID)...)
			return box.Run(t, harness.Cmd{Args: args, Files: openKept(t)})
		}, harness.All(harness.SameExit, harness.Exits(0), harness.Prints(want)))
	}
}

// TestKillForms: a signal by name, by name without SIG, in lower case and by number; none is TERM; --all is accepted.
func TestKillForms(t *testing.T) {
	for _, form := range [][]string{{"SIGUSR1"}, {"USR1"}, {"usr1"}, {"10"}} {
		t.Run(form[0], func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				d := box.Bare(t, p)
				b := box.Bundle(t, harness.Sh(`trap "exit 9" USR1; echo >/up; while :; do sleep 0.02; done`))
				run := box.Start(t, harness.Cmd{Args: d.Args("run", "--bundle", b.Dir, b.ID)})
				waitFor(t, func() bool { return exists(filepath.Join(b.Rootfs(), "up")) })
				d.Must(t, append([]string{"kill", b.ID}, form...)...)
				return run.Wait(t)
			}, exact(9, ""))
		})
	}
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		c := d.Up(t, nil)
		bad := fails(t, d.Do(t, "kill", c.ID, "SIGNOSUCH"), "signal")
		d.Must(t, "kill", "--all", c.ID, "KILL")
		d.WaitStatus(t, c.ID, "stopped")
		return result(bad)
	}, exact(0, "^error\n$"))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestIgnorePaused: exec --ignore-paused is admitted to a paused container, and runs when it is resumed.
func TestIgnorePaused(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		c := d.Up(t, nil)
		d.Must(t, "pause", c.ID)
		run := box.Start(t, harness.Cmd{Args: d.Args("exec", "--ignore-paused", c.ID, "echo", "thawed")})
		d.WaitStatus(t, c.ID, "paused")
		d.Must(t, "resume", c.ID)
		return run.Wait(t)
	}, exact(0, "^thawed\n$"))
}

// TestUpdateFlags: every flag of update that this host has a controller for.
func TestUpdateFlags(t *testing.T) {
	// Of v2's weight only the direction: 512 shares are 20 to runc 1.1, and 59 by the formula that runc has since 1.3.2.
	const show = "cd /sys/fs/cgroup; for f in cpu/cpu.shares cpuset/cpuset.cpus cpuset/cpuset.mems memory/memory.soft_limit_in_bytes cpuset.cpus cpuset.mems memory.low; do cat $f 2>/dev/null; done; " +
		"[ ! -e cpu.weight ] || [ $(cat cpu.weight) -lt 100 ] || echo not lighter"
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		c := d.Up(t, nil)
		d.Must(t, "update", "--cpu-share", "512", "--cpuset-cpus", "0", "--cpuset-mems", "0", "--memory-reservation", "33554432", c.ID)
		fails(t, d.Do(t, "update", "--cpuset-cpus", "0-99999", c.ID), "")
		fails(t, d.Do(t, "update", "--resources", "/nosuch/file", c.ID), "")
		return d.Do(t, "exec", c.ID, "sh", "-c", show)
	}, exact(0, "0\n0\n"))
}

// TestScheduling: what the specification has of a process's place on the CPU and the disk.
func TestScheduling(t *testing.T) {
	_, p := harness.Peers(t)
	r := plain(t, p).RunSpec(t, func(s *specs.Spec) {
		s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 5}
		s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_IDLE}
		s.Domainname = "domain.example"
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
		s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 1000000}}
		s.Process.Args = []string{"sh", "-c", "cut -d' ' -f19 /proc/self/stat; cut -d' ' -f41 /proc/self/stat; cat /proc/sys/kernel/domainname; test $(cut -d. -f1 /proc/uptime) -gt 1000000 && echo later"}
	})
	if msg := exact(0, "^5\n3\ndomain.example\nlater\n$")(r, r); msg != "" {
		t.Errorf("%s\n%v", msg, r)
	}
}

// TestPropagation: a mount that the host makes below an rslave source later arrives; below an rprivate one it does not
// (crun#2122).
func TestPropagation(t *testing.T) {
	for _, option := range []string{"rslave", "rprivate", "rshared"} {
		t.Run(option, func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				d := plain(t, p)
				source := box.TempDir(t)
				if err := unix.Mount("tmpfs", source, "tmpfs", 0, ""); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { unix.Unmount(source, unix.MNT_DETACH) })
				for _, err := range []error{unix.Mount("", source, "", unix.MS_SHARED, ""), os.Mkdir(source+"/later", 0o755)} {
					if err != nil {
						t.Fatal(err)
					}
				}
				c := d.Up(t, func(s *specs.Spec) {
					s.Linux.RootfsPropagation = option
					s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: source, Options: []string{"rbind", option}})
				})
				if err := unix.Mount("tmpfs", source+"/later", "tmpfs", 0, ""); err != nil {
					t.Fatal(err)
				}
				return d.Do(t, "exec", c.ID, "sh", "-c", "grep -c ' /mnt/later ' /proc/self/mountinfo; true")
			}, harness.All(harness.Same, harness.Exits(0)))
		})
	}
}

// TestKeyring: a container has a session keyring of its own, unless --no-new-keyring.
func TestKeyring(t *testing.T) {
	if !exists("/proc/keys") {
		t.Skip("probe /proc/keys: this kernel has no keyrings")
	}
	for _, flag := range []string{"", "--no-new-keyring"} {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d := plain(t, p)
			b := box.Bundle(t, func(s *specs.Spec) {
				// Those of other containers are in the list, too.
				harness.Sh("grep -c _ses." + filepath.Base(s.Linux.CgroupsPath) + ": /proc/keys; true")(s)
				s.Linux.MaskedPaths = nil
			})
			args := []string{"run", "--bundle", b.Dir}
			if flag != "" {
				args = append(args, flag)
			}
			return d.Do(t, append(args, b.ID)...)
		}, harness.All(harness.Same, harness.Exits(0)))
	}
}

// TestManyMountsAndDevices: descriptors are given back one by one, so that few suffice for many (runc#5026).
func TestManyMountsAndDevices(t *testing.T) {
	_, p := harness.Peers(t)
	d := plain(t, p)
	b := box.Bundle(t, func(s *specs.Spec) {
		for i := range 200 {
			n := strconv.Itoa(i)
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/m/" + n, Type: "tmpfs", Source: "tmpfs"})
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/d" + n, Type: "c", Major: 1, Minor: 3})
		}
		s.Process.Args = []string{"sh", "-c", "grep -c ' /m/' /proc/self/mountinfo; ls /dev | grep -c '^d[0-9]'"}
	})
	args := append([]string{"sh", "-c", `ulimit -n 64; exec "$@"`, "sh"}, d.Args("run", "--bundle", b.Dir, b.ID)...)
	r := box.Run(t, harness.Cmd{Args: args})
	if msg := exact(0, "^200\n200\n$")(r, r); msg != "" {
		t.Errorf("%s\n%v", msg, r)
	}
}

// TestTunDevice: /dev/net/tun is not in the default rules of a filter of ours under the profile none (runc#4556 dropped
// it); what the spec lists is what holds.
func TestTunDevice(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		ten, two := int64(10), int64(200)
		return plain(t, p).RunSpec(t, func(s *specs.Spec) {
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &ten, Minor: &two, Access: "rwm"})
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/net/tun", Type: "c", Major: ten, Minor: two})
			harness.Sh("ls -l /dev/net/tun | cut -c1; (: <>/dev/net/tun) 2>&1 | grep -c 'not permitted'")(s)
		})
	}, harness.All(harness.SameOutput, harness.Prints("^c\n0\n$")))
}

// TestPipeAsTerminal: what a terminal prints reaches a caller's pipe with the line ends that the process wrote.
func TestPipeAsTerminal(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		c := d.Up(t, nil)
		console := box.Console(t)
		d.Must(t, "exec", "--detach", "--tty", "--console-socket", console.Path, c.ID, "printf", `a\nb\n`)
		return result(strconv.Quote(console.Output(t)))
	}, harness.All(harness.SameOutput))
}

// TestTmpfsMode: a tmpfs without a mode has that of what it covers, and 1777 where there was nothing (runc#4971).
func TestTmpfsMode(t *testing.T) {
	_, p := harness.Peers(t)
	r := box.Bare(t, p).RunSpec(t, func(s *specs.Spec) {
		for _, d := range []string{"/root", "/made"} {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: d, Type: "tmpfs", Source: "tmpfs"})
		}
		harness.Sh("stat -c %a /root /made")(s)
	})
	image, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	was := box.MustRun(t, "stat", "-c", "%a", filepath.Join(image.Rootfs, "root"))
	if r.Exit != 0 || r.Stdout != strings.TrimSpace(was)+"\n1777\n" {
		t.Errorf("want %q and 1777:\n%v", was, r)
	}
}
