package stdio

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/pump"
)

// Addresses say where the streams of a process go, as a task request has them: "" is nothing, a path is a FIFO (or a
// file), binary:// is a log program, file:// a file to append to. With a terminal Stderr is not used.
type Addresses struct {
	Stdin, Stdout, Stderr string
	Terminal              bool
}

// Options say whose the streams are.
type Options struct {
	// UID and GID get the container's ends of the pipes, so that its user can open them again.
	UID, GID int
	// ID and Namespace are the container's, told to log programs.
	ID, Namespace string
	// Warn gets what went wrong while copying; nil discards it.
	Warn func(error)
}

// Streams are the open streams of one process.
type Streams struct {
	at   Addresses
	warn func(error)

	ctx    context.Context //nolint:containedctx // of the copying, which goes on after the call that began it
	cancel context.CancelCauseFunc

	// The process's ends, closed by Started.
	in, out, err, console *os.File

	// The shim's ends.
	inPipe, outPipe, errPipe *os.File
	socket                   *os.File // the master of the terminal arrives here
	logger                   *logger

	mu     sync.Mutex
	master *os.File
	holder *os.File // keeps stdin's FIFO open, until CloseStdin
	closed bool
	files  []*os.File // closed by Close

	outputs []*output      // complete once Started has returned
	copies  sync.WaitGroup // of output
	drained chan struct{}
	moved   atomic.Int64
}

var errClosed = errors.New("the streams were closed")

// Open prepares the streams of a process. The caller hands the files of Child to the process, calls Started when it
// runs, and Close in any case.
func Open(at Addresses, o Options) (*Streams, error) {
	s := &Streams{at: at, warn: o.Warn, drained: make(chan struct{})}
	if s.warn == nil {
		s.warn = func(error) {}
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	err := s.open(o)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Streams) open(o Options) error {
	if s.at.Terminal {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("create console socket: %w", err)
		}
		s.socket, s.console = os.NewFile(uintptr(fds[0]), "console"), os.NewFile(uintptr(fds[1]), "console")
		return s.openLogger(o)
	}
	var err error
	if s.at.Stdin != "" {
		if s.inPipe, s.in, err = pipe(o.UID, o.GID, true); err != nil {
			return err
		}
	}
	if err := s.openLogger(o); err != nil || s.logger != nil {
		return err
	}
	if s.at.Stdout != "" {
		if s.outPipe, s.out, err = pipe(o.UID, o.GID, false); err != nil {
			return err
		}
	}
	if s.at.Stderr != "" {
		s.errPipe, s.err, err = pipe(o.UID, o.GID, false)
	}
	return err
}

// openLogger starts the log program if the output goes to one, and checks the schemes.
func (s *Streams) openLogger(o Options) error {
	for _, address := range []*string{&s.at.Stdout, &s.at.Stderr} {
		if *address == "" || filepath.IsAbs(*address) {
			continue
		}
		u, err := url.Parse(*address)
		if err != nil {
			return fmt.Errorf("stdio address %q: %w", *address, err)
		}
		if !filepath.IsAbs(u.Path) || u.Host != "" {
			return fmt.Errorf("stdio address %q: the path is not absolute: %w", *address, unix.EINVAL)
		}
		switch u.Scheme {
		case "fifo":
			*address = u.Path
		case "file":
			// One file for both: what "file://" of standard output means to engines.
			if err := os.MkdirAll(filepath.Dir(u.Path), 0o755); err != nil { //nolint:forbidigo // a log directory of the host
				return fmt.Errorf("make log directory: %w", err)
			}
			f, err := openAppend(u.Path, unix.O_CREAT)
			if err != nil {
				return err
			}
			f.Close()
			s.at.Stdout = u.Path
			if !s.at.Terminal {
				s.at.Stderr = u.Path
			}
			return nil
		case "binary", "binary-v2":
			s.logger, s.out, s.err, err = startLogger(u, o)
			return err
		default:
			return fmt.Errorf("stdio address %q: unknown scheme: %w", *address, unix.EINVAL)
		}
	}
	return nil
}

func openAppend(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|os.O_WRONLY|os.O_APPEND|unix.O_CLOEXEC|unix.O_NOCTTY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log file: %w", err)
	}
	return f, nil
}

// Child returns the files for the process: its standard streams (nil is /dev/null), or the socket that it sends its
// terminal's master over. They stay the Streams'.
func (s *Streams) Child() (stdin, stdout, stderr, console *os.File) {
	if s.at.Terminal {
		return nil, nil, nil, s.console
	}
	return s.in, s.out, s.err, nil
}

// Started closes the process's ends, so that its end shows as the end of file, and starts to copy. With a terminal it
// receives the master, which the process has sent by now.
func (s *Streams) Started() error {
	if s.at.Terminal {
		s.console.Close()
		s.console = nil
		if err := s.receiveMaster(); err != nil {
			return err
		}
	}
	if s.at.Terminal {
		s.copyTerminal()
	} else {
		closeAll(&s.in, &s.out, &s.err)
		s.copyOut(s.outPipe, s.at.Stdout, true)
		s.copyOut(s.errPipe, s.at.Stderr, true)
		s.copyIn(s.inPipe)
	}
	go func() {
		s.copies.Wait()
		close(s.drained)
	}()
	return nil
}

func closeAll(files ...**os.File) {
	for _, f := range files {
		if *f != nil {
			(*f).Close() //nolint:errcheck // the other end has what was written
			*f = nil
		}
	}
}

// copyOut copies one stream of output to its destination; own says that src is to be closed at the end.
func (s *Streams) copyOut(src *os.File, to string, own bool) {
	if src == nil || to == "" {
		return
	}
	end := &output{ready: make(chan struct{})}
	s.outputs = append(s.outputs, end)
	s.copies.Go(func() {
		if own {
			defer src.Close()
		}
		dst, err := s.openOut(to, end)
		close(end.ready)
		if err != nil {
			if !errors.Is(err, errClosed) {
				s.warn(err)
			}
			return
		}
		err = pump.Stream(dst, src, func(n int) { s.moved.Add(int64(n)) })
		dst.Close()
		s.complain("copy output to "+to, err)
	})
}

// output is the destination of one stream.
type output struct {
	// ready is closed when it is open, or never will be.
	ready chan struct{}
	// late is when it was opened, if its reader was not there at once.
	late time.Time
}

// AwaitReaders waits until somebody reads from every FIFO of output, for at most limit, and gives a reader that came late
// a moment to notice. It belongs before the report of a process's end: clients (containerd's own among them) take that
// for the sign to give up opening what they have not opened yet, and then nobody reads what the process wrote. If the
// readers were there in time, it takes none.
func (s *Streams) AwaitReaders(limit time.Duration) {
	const notice = 50 * time.Millisecond
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for _, o := range s.outputs {
		select {
		case <-o.ready:
		case <-timer.C:
			return
		}
		if rest := notice - time.Since(o.late); rest > 0 {
			time.Sleep(rest)
		}
	}
}

// complain reports the failure of a copy, unless it failed because it was told to end.
func (s *Streams) complain(what string, err error) {
	if err != nil && s.ctx.Err() == nil {
		s.warn(fmt.Errorf("%s: %w", what, err))
	}
}

// openOut opens a destination; it is also closed by Close.
func (s *Streams) openOut(to string, end *output) (*os.File, error) {
	fifo, err := isFIFO(to)
	if err != nil {
		return nil, err
	}
	if !fifo {
		f, err := openAppend(to, 0)
		if err != nil {
			return nil, err
		}
		return f, s.keep(f)
	}
	began := time.Now()
	writer, reader, err := openWriter(s.ctx, to)
	if err != nil {
		return nil, err
	}
	if now := time.Now(); now.Sub(began) > firstRetry {
		end.late = now
	}
	return writer, s.keep(writer, reader)
}

// keep registers files for Close. If that has been called, they are closed at once.
func (s *Streams) keep(files ...*os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		for _, f := range files {
			f.Close()
		}
		return errClosed
	}
	s.files = append(s.files, files...)
	return nil
}

// copyIn copies standard input until the engine closes it.
func (s *Streams) copyIn(dst *os.File) {
	if dst == nil || s.at.Stdin == "" {
		return
	}
	reader, holder, err := openReader(s.at.Stdin)
	if err != nil {
		s.warn(err)
		dst.Close()
		return
	}
	s.mu.Lock()
	s.holder = holder
	s.mu.Unlock()
	if s.keep(reader, holder, dst) != nil {
		return
	}
	go func() {
		defer dst.Close()
		defer reader.Close()
		if err := pump.Stream(dst, reader, func(int) {}); !errors.Is(err, unix.EPIPE) {
			s.complain("copy input", err)
		}
	}()
}

// CloseStdin ends the process's input once the engine has closed its end and everything has been read.
func (s *Streams) CloseStdin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != nil {
		s.holder.Close()
		s.holder = nil
	}
}

// stallTime is how long output may stand still before Drain gives up on it.
const stallTime = 2 * time.Second

// Drain waits until all output has arrived, or a reader has not taken any for two seconds, or ctx ends.
func (s *Streams) Drain(ctx context.Context) {
	for last := int64(-1); ; {
		select {
		case <-s.drained:
			return
		case <-ctx.Done():
			return
		case <-time.After(stallTime):
			now := s.moved.Load()
			if now == last {
				return
			}
			last = now
		}
	}
}

// Close releases everything; output that has not been read by now is gone. A log program gets time to finish.
func (s *Streams) Close() {
	s.cancel(errClosed)
	s.mu.Lock()
	s.closed = true
	files, master := s.files, s.master
	s.files, s.master, s.holder = nil, nil, nil
	s.mu.Unlock()
	for _, f := range files {
		f.Close()
	}
	if master != nil {
		master.Close()
	}
	closeAll(&s.in, &s.out, &s.err, &s.console, &s.socket)
	// Files that a copying goroutine owns may be closed twice, which is an error without effect.
	for _, f := range []*os.File{s.inPipe, s.outPipe, s.errPipe} {
		if f != nil {
			f.Close()
		}
	}
	if s.logger != nil {
		s.logger.finish()
	}
}
