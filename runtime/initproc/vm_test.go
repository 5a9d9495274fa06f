package initproc

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// emulator is set when these tests are themselves run by qemu, see arm64_test.go: the kernel can't execute the image
// then, and its own descriptors and memory are not what the tests ask for.
const emulatorEnv = "AGENTSAFE_TEST_EMULATOR"

func nativeOnly(t *testing.T) {
	t.Helper()
	if os.Getenv(emulatorEnv) != "" {
		t.Skip("probe native processor: the kernel does not run this program itself")
	}
}

// command makes the command that runs p, with the given extra files from descriptor 3.
func command(t *testing.T, p *Program, extra ...*os.File) *exec.Cmd {
	t.Helper()
	var cmd *exec.Cmd
	if qemu := os.Getenv(emulatorEnv); qemu != "" {
		image := filepath.Join(t.TempDir(), "init")
		f, err := os.OpenFile(image, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o700)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := p.writeImage(f); err != nil {
			t.Fatal(err)
		}
		cmd = exec.Command(qemu, image)
	} else {
		f, err := p.seal(200)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		cmd = exec.Command("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
		cmd.Args = []string{"init"}
	}
	cmd.Env = []string{}
	cmd.ExtraFiles = extra
	return cmd
}

// run executes p and returns its standard output.
func run(t *testing.T, p *Program, extra ...*os.File) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := command(t, p, extra...)
	cmd.Stdout = &out
	err := cmd.Run()
	return out.String(), err
}

func begin(report int) *Program {
	p := newProgram(report)
	p.begin("test")
	return p
}

// say makes the child print a word.
func say(p *Program, word string) { p.call("say", unix.SYS_WRITE, imm(1), p.str(word), imm(len(word))) }

// quit ends the child well.
func quit(p *Program) { p.call("quit", unix.SYS_EXIT_GROUP, imm(0)) }

// fails appends a call that fails with e, by asking a filter for it: see refuse.
const failing = unix.SYS_GETPRIORITY

// refuse makes system call nr fail with errno, or does what another action of seccomp(2) says.
func refuse(p *Program, nr uintptr, action uint32) {
	filter := encode([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jf: 1},
		{Code: unix.BPF_RET, K: action},
		{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
	})
	prog := p.scratch(16)
	p.put64(prog, uint64(len(filter)/8))
	p.point(prog.plus(8), p.bytes(filter))
	p.call("no_new_privs", unix.SYS_PRCTL, imm(unix.PR_SET_NO_NEW_PRIVS), imm(1), imm(0), imm(0), imm(0))
	p.call("filter", unix.SYS_SECCOMP, imm(unix.SECCOMP_SET_MODE_FILTER), imm(0), prog)
}

func encode(in []unix.SockFilter) []byte {
	var out []byte
	for _, i := range in {
		out = append(out, byte(i.Code), byte(i.Code>>8), i.Jt, i.Jf, byte(i.K), byte(i.K>>8), byte(i.K>>16), byte(i.K>>24))
	}
	return out
}

func TestInterpreterRunsJumpsAndStores(t *testing.T) {
	p := begin(2)
	c := p.cell(-1)
	skip := &Label{}
	p.call("open nothing", unix.SYS_OPENAT, imm(unix.AT_FDCWD), p.str("/nonexistent"), imm(unix.O_RDONLY)).orElse(skip, unix.EPERM, unix.ENOENT)
	say(p, "never")
	p.place(skip)
	p.call("dup", unix.SYS_DUP, imm(1)).into(c)
	p.call("write", unix.SYS_WRITE, val(c), p.str("hello"), imm(5)).expect(5)
	p.call("write", unix.SYS_WRITE, val(c), p.str("hello"), imm(5)).expect(4).orElse(nil)
	p.call("exec", unix.SYS_EXECVE, p.str("/bin/echo"), p.vector([]string{"echo", "bye"}), p.vector(nil))
	out, err := run(t, p)
	if err != nil || out != "hellohellobye\n" {
		t.Fatalf("got %q, %v", out, err)
	}
}

func TestInterpreterReportsFailingOperation(t *testing.T) {
	p := begin(1)
	p.call("getpid", unix.SYS_GETPID)
	p.call("open nothing", unix.SYS_OPENAT, imm(unix.AT_FDCWD), p.str("/nonexistent"), imm(unix.O_RDONLY)).orElse(nil, unix.EPERM)
	out, err := run(t, p)
	if err == nil {
		t.Fatal("the child succeeded")
	}
	f := p.failure([]byte(out))
	if f == nil || f.What != "open nothing" || f.Errno != unix.ENOENT || f.Index != 1 || f.Step != "test" {
		t.Fatalf("got %+v from %x", f, out)
	}
	if exit := (*exec.ExitError)(nil); !asExit(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("ended by %v, want exit status 1", err)
	}
}

func asExit(err error, into **exec.ExitError) bool {
	e, ok := err.(*exec.ExitError) //nolint:errorlint // exec.Cmd returns it as it is
	*into = e
	return ok
}

// The report goes to the descriptor that newProgram was given, not to standard output.
func TestInterpreterReportsToItsDescriptor(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := begin(3)
	p.call("close nothing", unix.SYS_CLOSE, imm(99))
	out, _ := run(t, p, w)
	w.Close()
	record := make([]byte, 64)
	n, err := r.Read(record)
	if f := p.failure(record[:n]); err != nil || n != reportBytes || f == nil || f.Errno != unix.EBADF {
		t.Fatalf("read %d bytes, %v: %+v", n, err, f)
	}
	if out != "" {
		t.Fatalf("standard output has %q", out)
	}
}

func TestInterpreterChecksMemory(t *testing.T) {
	p := begin(1)
	buf := p.scratch(64)
	p.call("chdir", unix.SYS_CHDIR, p.str("/"))
	p.call("getcwd", unix.SYS_GETCWD, buf, imm(64))
	p.check("working directory", buf, 0xff, '/', unix.ENOENT)
	wrong := &Label{}
	p.check("no jump", buf, 0xff00, 0, unix.ENOENT).then(wrong)
	say(p, "never")
	p.place(wrong)
	p.check("jump", buf, 0xff, 'x', unix.EXDEV).orElse(nil)
	p.check("all eight bytes", p.words(0x1122334455667788), ^uint64(0), 0x1122334455667788, unix.EBADF)
	p.check("high byte", p.words(0x1122334455667788), 0xff<<56, 0x11<<56, unix.EBADF)
	p.check("working directory", buf, 0xff, 'x', unix.EXDEV)
	out, _ := run(t, p)
	if f := p.failure([]byte(out)); f == nil || f.Errno != unix.EXDEV || f.What != "working directory" {
		t.Fatalf("got %+v of %q", f, out)
	}
}

// Six arguments, two of them cells, two addresses of writable data: copy_file_range.
func TestInterpreterPassesSixArguments(t *testing.T) {
	dir := t.TempDir()
	in, err := os.Create(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := in.WriteString("0123456789"); err != nil {
		t.Fatal(err)
	}
	p := begin(1)
	offIn, offOut := p.scratch(8), p.scratch(8)
	p.put64(offIn, 3)
	p.put64(offOut, 2)
	length := p.cell(4)
	p.call("copy", unix.SYS_COPY_FILE_RANGE, val(p.cell(3)), offIn, val(p.cell(4)), offOut, val(length), imm(0)).expect(4)
	// The kernel has moved the offsets.
	p.check("offset in", offIn, ^uint64(0), 7, unix.EBADF)
	p.check("offset out", offOut, ^uint64(0), 6, unix.EBADF)
	quit(p)
	if got, err := run(t, p, in, out); err != nil {
		t.Fatalf("%v: %+v", err, p.failure([]byte(got)))
	}
	if data, _ := os.ReadFile(out.Name()); string(data) != "\x00\x003456" {
		t.Fatalf("copied %q", data)
	}
}

// A cell is 32 bits and signed: -3 is an offset of 64 bits, and a result does not reach the next cell.
func TestInterpreterCellsAreSigned32(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 33); err != nil {
		t.Fatal(err)
	}
	p := begin(1)
	p.rw = align8(p.rw)
	left, right := p.cell(-3), p.cell(0x1234)
	p.call("seek", unix.SYS_LSEEK, imm(3), val(left), imm(unix.SEEK_END)).expect(1<<33 - 3)
	p.call("seek", unix.SYS_LSEEK, imm(3), imm(1<<33-1), imm(unix.SEEK_SET)).into(left)
	at := Arg{kind: argRW, value: uint64(left)}
	p.check("cells", at, ^uint64(0), 0x1234<<32|0xffffffff, unix.EBADF)
	p.call("seek", unix.SYS_LSEEK, imm(3), val(right), imm(unix.SEEK_SET)).expect(0x1234)
	quit(p)
	if out, err := run(t, p, f); err != nil {
		t.Fatalf("%v: %+v", err, p.failure([]byte(out)))
	}
}

// A result that is not expected fails with EPROTO, unless a jump is asked for without an errno.
func TestInterpreterExpect(t *testing.T) {
	for name, c := range map[string]struct {
		flow func(o op, other *Label) op
		want string // printed; "" is EPROTO
	}{
		"expected":            {func(o op, _ *Label) op { return o.expect(5) }, "next"},
		"other":               {func(o op, _ *Label) op { return o.expect(4) }, ""},
		"expected with errno": {func(o op, l *Label) op { return o.expect(5).orElse(l, unix.EBADF) }, "next"},
		// The errno is tolerated, a short write is not.
		"other with errno":     {func(o op, l *Label) op { return o.expect(4).orElse(l, unix.EBADF) }, ""},
		"other with jump":      {func(o op, l *Label) op { return o.expect(4).orElse(l) }, "other"},
		"expected with jump":   {func(o op, l *Label) op { return o.expect(5).orElse(l) }, "next"},
		"expected with then":   {func(o op, l *Label) op { return o.expect(5).then(l) }, "other"},
		"other, jump and then": {func(o op, l *Label) op { return o.expect(4).then(&Label{at: 0}).orElse(l) }, "other"},
	} {
		p := begin(2)
		other := &Label{}
		null := p.cell(-1)
		p.call("open", unix.SYS_OPENAT, imm(unix.AT_FDCWD), p.str("/dev/null"), imm(unix.O_WRONLY)).into(null)
		c.flow(p.call("write", unix.SYS_WRITE, val(null), p.str("hello"), imm(5)), other)
		say(p, "next")
		quit(p)
		p.place(other)
		say(p, "other")
		quit(p)
		var stderr bytes.Buffer
		var stdout bytes.Buffer
		cmd := command(t, p)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if c.want != "" {
			if err != nil || stdout.String() != c.want {
				t.Errorf("%s: printed %q, %v; want %q", name, stdout.String(), err, c.want)
			}
			continue
		}
		if f := p.failure(stderr.Bytes()); err == nil || f == nil || f.Errno != unix.EPROTO || f.What != "write" {
			t.Errorf("%s: %v, %+v, printed %q; want EPROTO", name, err, f, stdout.String())
		}
	}
}

// Up to eight errnos are tolerated; one that is not in the list is reported, however long the list is.
func TestInterpreterToleratesLists(t *testing.T) {
	list := []unix.Errno{unix.EPERM, unix.ENOENT, unix.EIO, unix.EBADF, unix.EHWPOISON, unix.EACCES, unix.EBUSY, unix.EXDEV}
	for n := 1; n <= len(list); n++ {
		for _, e := range []unix.Errno{list[0], list[n-1], list[n/2], unix.ENOTTY} {
			tolerated := e != unix.ENOTTY
			p := begin(2)
			other := &Label{}
			if e == unix.EBADF {
				p.call("fail", unix.SYS_CLOSE, imm(99)).orElse(other, list[:n]...)
			} else {
				refuse(p, failing, unix.SECCOMP_RET_ERRNO|uint32(e))
				p.call("fail", failing, imm(0), imm(0)).orElse(other, list[:n]...)
			}
			quit(p)
			p.place(other)
			say(p, "other")
			quit(p)
			if os.Getenv(emulatorEnv) != "" && e != unix.EBADF {
				continue // qemu has no seccomp(2) for its guests
			}
			var stderr bytes.Buffer
			cmd := command(t, p)
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			f := p.failure(stderr.Bytes())
			if tolerated && (err != nil || string(out) != "other") {
				t.Errorf("%d errnos, %v: %v, printed %q, %+v", n, e, err, out, f)
			}
			if !tolerated && (f == nil || f.Errno != e) {
				t.Errorf("%d errnos, %v: not reported: %v, %+v", n, e, err, f)
			}
		}
	}
}

// With no errno listed, every errno is tolerated, up to the highest that the kernel has.
func TestInterpreterToleratesEverything(t *testing.T) {
	nativeOnly(t)
	for _, e := range []uint32{1, 11, 133, 255, 512, 4095} {
		p := begin(2)
		refuse(p, failing, unix.SECCOMP_RET_ERRNO|e)
		good := &Label{}
		p.call("fail", failing, imm(0), imm(0)).then(good).orElse(nil)
		say(p, "on")
		quit(p)
		p.place(good)
		say(p, "taken for success")
		quit(p)
		if out, err := run(t, p); err != nil || out != "on" {
			t.Errorf("errno %d: %v, printed %q", e, err, out)
		}
	}
	// An address is not an errno, however high: -4096 is a result.
	p := begin(2)
	p.call("brk", unix.SYS_BRK, imm(0))
	say(p, "on")
	quit(p)
	if out, err := run(t, p); err != nil || out != "on" {
		t.Errorf("brk: %v, printed %q", err, out)
	}
}

// A call that a signal interrupts is made again: SIGSTOP and SIGCONT make epoll_wait answer EINTR even where nobody
// handles a signal (signal(7)). Seen with the interpreter's comparison with EINTR removed: the child reports it.
func TestInterpreterRetriesEINTR(t *testing.T) {
	nativeOnly(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	ep := os.NewFile(uintptr(epoll), "epoll")
	defer ep.Close()
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(r.Fd()), &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		t.Fatal(err)
	}
	p := begin(2)
	p.call("wait", unix.SYS_EPOLL_PWAIT, imm(3), p.scratch(16), imm(1), imm(-1), imm(0), imm(8)).expect(1)
	say(p, "woken")
	quit(p)
	cmd := command(t, p, ep)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		waitState(t, cmd.Process.Pid, "S")
		cmd.Process.Signal(unix.SIGSTOP) //nolint:errcheck // it lives
		waitState(t, cmd.Process.Pid, "T")
		cmd.Process.Signal(unix.SIGCONT) //nolint:errcheck // likewise
	}
	waitState(t, cmd.Process.Pid, "S")
	if _, err := w.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || out.String() != "woken" {
		t.Fatalf("%v, %q, %+v", err, out.String(), p.failure(out.Bytes()))
	}
}

// A call with the flag is made again on EAGAIN; without it EAGAIN is an errno as any other.
func TestInterpreterRetriesEAGAIN(t *testing.T) {
	for _, again := range []bool{true, false} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		r, w := os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
		p := begin(2)
		say(p, "begun ")
		if o := p.call("read", unix.SYS_READ, imm(3), p.scratch(8), imm(1)).expect(1); again {
			o.again()
		}
		say(p, "read")
		quit(p)
		cmd := command(t, p, r)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(fds[0], true); err != nil { // in case that os/exec has made it blocking
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("begun "))); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(map[bool]time.Duration{true: 50 * time.Millisecond, false: 5 * time.Second}[again], func() {
			w.Write([]byte{1}) //nolint:errcheck // Wait tells
		})
		rest, _ := io.ReadAll(out)
		err = cmd.Wait()
		timer.Stop()
		if again && (err != nil || string(rest) != "read") {
			t.Errorf("%v, %q, %+v", err, rest, p.failure(errs.Bytes()))
		}
		if f := p.failure(errs.Bytes()); !again && (f == nil || f.Errno != unix.EAGAIN) {
			t.Errorf("without the flag: %v, %+v", err, f)
		}
		r.Close()
		w.Close()
	}
}

// waitState waits until the process is in a state of /proc/PID/stat.
func waitState(t *testing.T, pid int, want string) {
	t.Helper()
	got := ""
	for range 400 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if got = rest[:1]; got == want || got == "Z" {
			if got == "Z" {
				t.Fatal("the child has ended")
			}
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("state %s, want %s", got, want)
}

// A filter may refuse the very calls with which the child reports and ends. It ends all the same.
func TestInterpreterEndsUnderHostileFilters(t *testing.T) {
	nativeOnly(t)
	for name, c := range map[string]struct {
		nr     uintptr
		action uint32
		signal syscall.Signal // 0: exit status 1
		report bool
	}{
		"write kills":  {unix.SYS_WRITE, unix.SECCOMP_RET_KILL_PROCESS, unix.SIGSYS, false},
		"write fails":  {unix.SYS_WRITE, unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), 0, false},
		"write is nop": {unix.SYS_WRITE, unix.SECCOMP_RET_ERRNO, 0, false},
		"exit kills":   {unix.SYS_EXIT_GROUP, unix.SECCOMP_RET_KILL_PROCESS, unix.SIGSYS, true},
		"exit fails":   {unix.SYS_EXIT_GROUP, unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), unix.SIGILL, true},
		"exec kills":   {unix.SYS_EXECVE, unix.SECCOMP_RET_KILL_PROCESS, unix.SIGSYS, false},
		"exec traps":   {unix.SYS_EXECVE, unix.SECCOMP_RET_TRAP, unix.SIGSYS, false},
		"exec fails":   {unix.SYS_EXECVE, unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), 0, true},
	} {
		p := begin(1)
		refuse(p, c.nr, c.action)
		p.call("exec", unix.SYS_EXECVE, p.str("/nonexistent"), p.vector([]string{"x"}), p.vector(nil))
		out, err := run(t, p)
		exit := (*exec.ExitError)(nil)
		if !asExit(err, &exit) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ws := exit.Sys().(syscall.WaitStatus)
		if c.signal != 0 && ws.Signal() != c.signal || c.signal == 0 && ws.ExitStatus() != 1 {
			t.Errorf("%s: ended by %v", name, err)
		}
		if got := p.failure([]byte(out)) != nil; got != c.report {
			t.Errorf("%s: reported %v, want %v", name, got, c.report)
		}
	}
}

// A loop that the plan wrote: until the word has come.
func TestInterpreterJumpsBack(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("aaaaab"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	p := begin(2)
	buf := p.scratch(8)
	again := p.here()
	p.call("read", unix.SYS_READ, imm(3), buf, imm(1)).expect(1)
	say(p, ".")
	p.check("is it b?", buf, 0xff, 'b', unix.EBADF).orElse(again)
	quit(p)
	if out, err := run(t, p, r); err != nil || out != "......" {
		t.Fatalf("%v, printed %q", err, out)
	}
}
