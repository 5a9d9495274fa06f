package stdio

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/pump"
)

// ErrNoTerminal says that a process has no terminal, or has it no more.
var ErrNoTerminal = errors.New("the process has no terminal")

// receiveMaster takes in the terminal's master, which the process sends before it executes its program.
func (s *Streams) receiveMaster() error {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(s.socket.Fd()), make([]byte, 4096), oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	closeAll(&s.socket)
	if err != nil {
		return fmt.Errorf("receive terminal: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("receive terminal: no descriptor arrived: %w", unix.EPROTO)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("receive terminal: no descriptor arrived: %w", unix.EPROTO)
	}
	fd := fds[0]
	if err := setUpMaster(fd); err != nil {
		unix.Close(fd)
		return fmt.Errorf("set up terminal: %w", err)
	}
	master := os.NewFile(uintptr(fd), "terminal")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		master.Close()
		return errClosed
	}
	s.master = master
	return nil
}

// setUpMaster hands the descriptor to the poller and leaves line feeds alone: engines that read output through a pipe
// expect "\n" as the process wrote it.
func setUpMaster(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Oflag &^= unix.ONLCR
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}

func (s *Streams) copyTerminal() {
	s.mu.Lock()
	master := s.master
	s.mu.Unlock()
	if s.logger != nil {
		// The log program reads from a pipe whose writing end is ours here.
		out := s.out
		s.out = nil
		closeAll(&s.err)
		s.copies.Go(func() {
			defer out.Close()
			s.complain("copy terminal to log program", pump.Copy(out, master, func(n int) { s.moved.Add(int64(n)) }))
		})
	} else {
		s.copyOut(master, s.at.Stdout, false)
	}
	s.copyTerminalIn(master)
}

// copyTerminalIn copies input to the terminal, whose master outlives it.
func (s *Streams) copyTerminalIn(master *os.File) {
	if s.at.Stdin == "" {
		return
	}
	reader, holder, err := openReader(s.at.Stdin)
	if err != nil {
		s.warn(err)
		return
	}
	s.mu.Lock()
	s.holder = holder
	s.mu.Unlock()
	if s.keep(reader, holder) != nil {
		return
	}
	go func() {
		defer reader.Close()
		pump.Copy(master, reader, func(int) {}) //nolint:errcheck // the end of either side ends it
	}()
}

// Resize sets the size of the terminal in characters. The error is ErrNoTerminal if there is none.
func (s *Streams) Resize(columns, rows uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.master == nil {
		return ErrNoTerminal
	}
	conn, err := s.master.SyscallConn()
	if err != nil {
		return err
	}
	size := &unix.Winsize{Row: rows, Col: columns}
	cerr := conn.Control(func(fd uintptr) { err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	if cerr != nil {
		return cerr
	}
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	return nil
}
