package profiles

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// deeds are what the child tries, by name, in a directory with the folders work, read and other.
func deeds(dir string) []struct {
	name string
	do   func() error
} {
	in := func(p string) string { return filepath.Join(dir, p) }
	open := func(p string, flags int) error {
		fd, err := unix.Open(in(p), flags|unix.O_CLOEXEC, 0o600)
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}
	run := func(p string) error { return exec.CommandContext(context.Background(), in(p)).Run() }
	return []struct {
		name string
		do   func() error
	}{
		{"create in work", func() error { return open("work/new", unix.O_CREAT|unix.O_WRONLY) }},
		{"read in work", func() error { return open("work/file", unix.O_RDONLY) }},
		{"rename into a folder of work", func() error { return unix.Rename(in("work/new"), in("work/sub/new")) }},
		{"fifo in work", func() error { return unix.Mkfifo(in("work/fifo"), 0o600) }},
		{"execute in work", func() error { return run("work/program") }},
		{"read in read", func() error { return open("read/file", unix.O_RDONLY) }},
		{"write in read", func() error { return open("read/file", unix.O_WRONLY) }},
		{"create in read", func() error { return open("read/new", unix.O_CREAT|unix.O_WRONLY) }},
		{"truncate in read", func() error { return unix.Truncate(in("read/file"), 0) }},
		{"remove in read", func() error { return unix.Unlink(in("read/file")) }},
		{"rename from read to work", func() error { return unix.Rename(in("read/file"), in("work/stolen")) }},
		{"link from read to work", func() error { return unix.Link(in("read/file"), in("work/stolen")) }},
		{"execute in read", func() error { return run("read/program") }},
		{"read in other", func() error { return open("other/file", unix.O_RDONLY) }},
		{"list other", func() error { return open("other", unix.O_RDONLY|unix.O_DIRECTORY) }},
		{"symlink in work to other", func() error { return unix.Symlink(in("other/file"), in("work/link")) }},
		{"read through the symlink", func() error { return open("work/link", unix.O_RDONLY) }},
		{"null device", func() error {
			fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}},
		{"character device in work", func() error { return unix.Mknod(in("work/chr"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) }},
		{"block device in work", func() error { return unix.Mknod(in("work/blk"), unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0))) }},
		{"ioctl of a device in /dev", func() error { return deviceIoctl("/dev/null") }},
		{"ioctl of a device elsewhere", func() error { return deviceIoctl(in("work/node")) }},
	}
}

// deviceIoctl asks a device that is no terminal for terminal attributes: ENOTTY comes from the driver.
func deviceIoctl(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer unix.Close(fd)
	_, err = unix.IoctlGetTermios(fd, unix.TCGETS)
	return err
}

// playLandlock is the child: it reads a plan, goes under it, and prints an errno for each deed.
func playLandlock() error {
	runtime.LockOSThread()
	var plan LandlockPlan
	if err := json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&plan); err != nil {
		return err
	}
	if err := restrict(&plan); err != nil {
		return err
	}
	for _, d := range deeds(os.Args[1]) {
		err := d.do()
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			fmt.Printf("%s: %s\n", d.name, unix.ErrnoName(errno))
		} else {
			fmt.Printf("%s: %v\n", d.name, err)
		}
	}
	return nil
}

// stage makes the folders.
func stage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"work/sub", "read", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"work/file", "read/file", "other/file"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"work/program", "read/program"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(filepath.Join(dir, "work/node"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("probe mknod: %v", err)
	}
	return dir
}

func act(t *testing.T, dir string, plan *LandlockPlan) map[string]string {
	t.Helper()
	in, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", dir)
	cmd.Env = append(os.Environ(), roleVariable+"=landlock")
	cmd.Stdin = bytes.NewReader(in)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	got := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		name, result, _ := strings.Cut(line, ": ")
		got[name] = result
	}
	return got
}

// What a narrow profile's plan means on this kernel, asserted from inside.
func TestPlanLandlock_EnforcedNarrow(t *testing.T) {
	abi := landlockABI()
	if abi < abiTruncate {
		t.Skipf("probe landlock: ABI %d", abi)
	}
	dir := stage(t)
	p := agent()
	p.Filesystem = Filesystem{
		Read:    []string{"/usr", "/lib", "/lib64", "/bin", filepath.Join(dir, "read"), "/does/not/exist"},
		Execute: []string{"/usr", "/lib", "/lib64", "/bin", filepath.Join(dir, "read")},
		Write:   []string{filepath.Join(dir, "work")},
	}
	plan, _, err := PlanLandlock(loadSpec(t, "runc-spec"), p, HostFacts{LandlockABI: abi})
	if err != nil {
		t.Fatal(err)
	}
	got := act(t, dir, plan)
	for name, want := range map[string]string{
		"create in work": "<nil>", "read in work": "<nil>", "rename into a folder of work": "<nil>", "fifo in work": "<nil>",
		"execute in work": "EACCES",
		"read in read":    "<nil>", "write in read": "EACCES", "create in read": "EACCES", "truncate in read": "EACCES",
		"remove in read": "EACCES", "rename from read to work": "EACCES", "link from read to work": "EXDEV", "execute in read": "<nil>",
		"read in other": "EACCES", "list other": "EACCES",
		"symlink in work to other": "<nil>", "read through the symlink": "EACCES",
		"null device":              "<nil>",
		"character device in work": "EACCES", "block device in work": "EACCES",
		"ioctl of a device in /dev": "ENOTTY", "ioctl of a device elsewhere": expectIoctl(abi),
	} {
		if got[name] != want {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
	if t.Failed() {
		t.Log(plan)
	}
}

func expectIoctl(abi int) string {
	if abi < abiIoctl {
		return "ENOTTY"
	}
	return "EACCES"
}

// agent grants the tree: only device nodes and ioctls of devices outside of /dev are refused.
func TestPlanLandlock_EnforcedAgent(t *testing.T) {
	abi := landlockABI()
	if abi < abiRefer {
		t.Skipf("probe landlock: ABI %d", abi)
	}
	dir := stage(t)
	plan, _, err := PlanLandlock(loadSpec(t, "runc-spec"), agent(), HostFacts{LandlockABI: abi})
	if err != nil {
		t.Fatal(err)
	}
	got := act(t, dir, plan)
	for name, want := range map[string]string{
		"create in work": "<nil>", "rename into a folder of work": "<nil>", "execute in work": "<nil>",
		"write in read": "<nil>", "create in read": "<nil>", "truncate in read": "<nil>", "remove in read": "<nil>",
		"read in other": "<nil>", "read through the symlink": "<nil>", "null device": "<nil>",
		"character device in work": "EACCES", "block device in work": "EACCES",
		"ioctl of a device in /dev": "ENOTTY", "ioctl of a device elsewhere": expectIoctl(abi),
	} {
		if got[name] != want {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
}
