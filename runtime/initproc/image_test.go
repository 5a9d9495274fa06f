package initproc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is mapped in a child that waits: the four segments with the rights that they need and no more, the stack, and
// what the kernel adds. No heap, no libc, and nothing of the runtime's own binary.
func TestImageMappings(t *testing.T) {
	nativeOnly(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := begin(2)
	p.str("read-only data")
	p.call("wait", unix.SYS_READ, imm(3), p.scratch(8), imm(1)).expect(1)
	quit(p)
	cmd := command(t, p, r)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitState(t, cmd.Process.Pid, "S")
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"00400000": "r-xp", "01000000": "r--p", "11000000": "r--p", "41000000": "rw-p"}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		start, _, _ := strings.Cut(f[0], "-")
		switch {
		case want[start] != "":
			if f[1] != want[start] || !strings.Contains(line, "/memfd:agentsafe-init") {
				t.Errorf("segment %s is %s of %s, want %s of the memfd", start, f[1], f[len(f)-1], want[start])
			}
			delete(want, start)
		case regexp.MustCompile(`\[(stack|vdso|vvar|vvar_vclock|vsyscall)\]`).MatchString(line):
		default:
			t.Errorf("unexpected mapping %s", line)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing segments %v", want)
	}
	// CVE-2019-5736: nobody can write to what /proc/PID/exe leads to, neither while it runs nor afterwards.
	exe := fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)
	if f, err := os.OpenFile(exe, os.O_WRONLY, 0); !errors.Is(err, unix.ETXTBSY) {
		t.Errorf("open for writing while it runs: %v, want ETXTBSY", err)
		f.Close()
	}
	kept, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	w.Write([]byte{1}) //nolint:errcheck // Wait tells
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(kept.Fd())), os.O_WRONLY, 0); err == nil {
		if _, err := f.WriteAt([]byte("#!"), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("write afterwards: %v, want EPERM", err)
		}
		if err := f.Truncate(0); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate afterwards: %v, want EPERM", err)
		}
		f.Close()
	}
	if got, err := unix.FcntlInt(kept.Fd(), unix.F_GET_SEALS, 0); err != nil || got&0xf != 0xf {
		t.Errorf("seals %#x, %v", got, err)
	}
}

// The interpreter may use neither calls nor the stack, and its bytes end before the marker.
func TestInterpreterCodeIsSmall(t *testing.T) {
	code := interpreterCode()
	if len(code) < 100 || len(code) > 600 {
		t.Fatalf("the interpreter has %d bytes", len(code))
	}
	if bytes.Contains(code, []byte("agent-vm")) {
		t.Error("the marker is part of the code")
	}
}

func TestImageRefusesHugePrograms(t *testing.T) {
	p := begin(2)
	for range 1 << 16 {
		p.call("x", unix.SYS_GETPID)
	}
	if _, err := p.segments(); !errors.Is(err, unix.E2BIG) {
		t.Fatalf("%d operations: %v, want E2BIG", 1<<16, err)
	}
}

// Large arguments lie in the image; execve refuses what the kernel would refuse of anybody.
func TestImageLargeArguments(t *testing.T) {
	nativeOnly(t)
	for _, c := range []struct {
		args  int
		bytes int
		errno unix.Errno
	}{{2000, 40, 0}, {1, 100 << 10, 0}, {1, 200 << 10, unix.E2BIG}, {100, 100 << 10, unix.E2BIG}} {
		args := []string{"sh", "-c", "echo $#"}
		for range c.args {
			args = append(args, strings.Repeat("a", c.bytes))
		}
		p := begin(1)
		p.call("exec", unix.SYS_EXECVE, p.str("/bin/sh"), p.vector(args), p.vector(nil))
		out, err := run(t, p)
		if c.errno == 0 && (err != nil || strings.TrimSpace(out) != strconv.Itoa(c.args-1)) {
			t.Errorf("%d x %d bytes: %q, %v", c.args, c.bytes, out, err)
		}
		if f := p.failure([]byte(out)); c.errno != 0 && (f == nil || f.Errno != c.errno) {
			t.Errorf("%d x %d bytes: %+v, want %v", c.args, c.bytes, f, c.errno)
		}
	}
}

// The tools of a system agree that it is an executable.
func TestImageIsELF(t *testing.T) {
	readelf, err := exec.LookPath("readelf")
	if err != nil {
		t.Skip("probe readelf: " + err.Error())
	}
	p := begin(2)
	quit(p)
	f, err := p.seal(100)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(readelf, "-W", "-h", "-l", "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{f}
	out, err := cmd.CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("Warning")) || bytes.Contains(out, []byte("Error")) {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"EXEC (Executable file)", "R E", "RW "} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("readelf does not say %q: %s", want, out)
		}
	}
	if bytes.Contains(out, []byte("RWE")) {
		t.Error("a segment is writable and executable")
	}
}

// A record is decoded only if it can be one of the program's.
func TestFailureDecodesOnlyItsOwn(t *testing.T) {
	p := begin(1)
	p.call("first", unix.SYS_GETPID)
	p.call("second", unix.SYS_GETPID)
	record := func(at, errno uint64) []byte {
		return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, at), errno)
	}
	for name, c := range map[string]struct {
		record []byte
		want   string
	}{
		"first": {record(tableBase, 5), "first"}, "second": {record(tableBase+opBytes, 5), "second"},
		"behind": {record(tableBase+2*opBytes, 5), ""}, "below": {record(tableBase-opBytes, 5), ""}, "zero": {record(0, 5), ""},
		"phase": {record(1, 0), ""}, "far": {record(1<<63, 5), ""}, "short": {record(tableBase, 5)[:15], ""}, "empty": {nil, ""},
	} {
		f := p.failure(c.record)
		if (f == nil) != (c.want == "") || f != nil && f.What != c.want {
			t.Errorf("%s: %+v, want %q", name, f, c.want)
		}
	}
}
