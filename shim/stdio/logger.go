package stdio

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// logger is a program that gets the output of a container. It is the engine's choice and runs as the shim does.
//
// Protocol (containerd, core/runtime/v2/README.md, "Logging"): descriptors 3 and 4 are the container's output and error
// output, 5 is closed (binary-v2: written to and closed) when the program is ready.
type logger struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// readyTime bounds how long a log program may take to become ready, exitTime how long it may go on after the end of its
// input.
const (
	readyTime = 10 * time.Second
	exitTime  = 12 * time.Second
)

// startLogger starts the program and returns the writing ends of its two pipes.
func startLogger(u *url.URL, o Options) (l *logger, out, errOut *os.File, err error) {
	var files []*os.File
	defer func() {
		// The program's ends in any case, ours if it failed.
		for i, f := range files {
			if err != nil || i%2 == 0 {
				f.Close()
			}
		}
	}()
	for range 2 {
		writer, reader, perr := pipe(o.UID, o.GID, true)
		if perr != nil {
			return nil, nil, nil, perr
		}
		files = append(files, reader, writer)
		// The container's end, not ours.
		conn, cerr := writer.SyscallConn()
		if cerr != nil {
			return nil, nil, nil, cerr
		}
		if cerr := conn.Control(func(fd uintptr) {
			err = errors.Join(unix.SetNonblock(int(fd), false), unix.Fchown(int(fd), o.UID, o.GID))
		}); cerr != nil || err != nil {
			return nil, nil, nil, errors.Join(cerr, err)
		}
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("create pipe: %w", err)
	}
	defer ready.Close()
	cmd := exec.Command(filepath.Clean(u.Path), arguments(u)...) //nolint:gosec,noctx // the engine names it, as root; it lives as long as the container
	cmd.Env = append(os.Environ(), "CONTAINER_ID="+o.ID, "CONTAINER_NAMESPACE="+o.Namespace)
	cmd.ExtraFiles = []*os.File{files[0], files[2], theirs}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("start log program: %w", err)
	}
	l = &logger{cmd: cmd, done: make(chan struct{})}
	go func() {
		cmd.Wait() //nolint:errcheck // its exit status says nothing about the container
		close(l.done)
	}()
	if err = l.waitReady(ready, u.Scheme == "binary-v2"); err != nil {
		cmd.Process.Kill() //nolint:errcheck // gone is what we want
		return nil, nil, nil, err
	}
	return l, files[1], files[3], nil
}

func (l *logger) waitReady(ready *os.File, strict bool) error {
	if err := ready.SetReadDeadline(time.Now().Add(readyTime)); err != nil {
		return fmt.Errorf("wait for log program: %w", err)
	}
	n, err := ready.Read(make([]byte, 1))
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("wait for log program: %w", err)
	}
	if strict && n == 0 {
		return errors.New("the log program ended before it was ready")
	}
	return nil
}

// arguments turns the query into a command line: each key, followed by its value if there is one.
func arguments(u *url.URL) []string {
	var args []string
	for k, vs := range u.Query() {
		args = append(args, k)
		if len(vs) > 0 {
			args = append(args, vs[0])
		}
	}
	return args
}

// finish lets the program read what is left, in the background; one that does not end then is ended.
func (l *logger) finish() {
	go func() {
		for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
			select {
			case <-l.done:
				return
			case <-time.After(exitTime):
				l.cmd.Process.Signal(sig) //nolint:errcheck // it may have ended meanwhile
			}
		}
	}()
}
