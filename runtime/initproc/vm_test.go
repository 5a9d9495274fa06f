package initproc

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// run executes p with the given extra files from descriptor 3 and returns its standard output.
func run(t *testing.T, p *Program, extra ...*os.File) (string, error) {
	t.Helper()
	f, err := p.seal(200)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	cmd.Args = []string{"init"}
	cmd.Stdout = &out
	cmd.ExtraFiles = extra
	err = cmd.Run()
	return out.String(), err
}

func TestInterpreterRunsJumpsAndStores(t *testing.T) {
	p := newProgram(2)
	p.begin("test")
	c := p.cell(-1)
	skip := &Label{}
	p.call("open nothing", unix.SYS_OPENAT, imm(unix.AT_FDCWD), p.str("/nonexistent"), imm(unix.O_RDONLY)).orElse(skip, unix.EPERM, unix.ENOENT)
	p.call("write", unix.SYS_WRITE, imm(1), p.str("never"), imm(5))
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
	p := newProgram(1)
	p.begin("test")
	p.call("getpid", unix.SYS_GETPID)
	p.call("open nothing", unix.SYS_OPENAT, imm(unix.AT_FDCWD), p.str("/nonexistent"), imm(unix.O_RDONLY)).orElse(nil, unix.EPERM)
	out, err := run(t, p)
	if err == nil {
		t.Fatal("the child succeeded")
	}
	f := p.failure([]byte(out))
	if f == nil || f.What != "open nothing" || f.Errno != unix.ENOENT {
		t.Fatalf("got %+v from %x", f, out)
	}
}

func TestInterpreterChecksMemory(t *testing.T) {
	p := newProgram(1)
	p.begin("test")
	buf := p.scratch(64)
	p.call("getcwd", unix.SYS_GETCWD, buf, imm(64))
	p.check("working directory", buf, 0xff, '/', unix.ENOENT)
	p.check("working directory", buf, 0xff, 'x', unix.EXDEV)
	out, _ := run(t, p)
	if f := p.failure([]byte(out)); f == nil || f.Errno != unix.EXDEV {
		t.Fatalf("got %+v", f)
	}
}
