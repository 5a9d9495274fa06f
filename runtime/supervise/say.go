package supervise

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// keepStderr keeps a duplicate of the first process's standard error for one line about its end. Whoever reads the
// stream sees its end only when that is closed, so it is closed as soon as the first process has ended.
func (s *Supervisor) keepStderr(f *os.File) {
	if f == nil {
		return
	}
	if fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3); err == nil {
		s.stderr = os.NewFile(uintptr(fd), "stderr")
	}
}

// say writes a line to the container's standard error if it can be done without waiting; it is said once. It
// comes before the container is killed, because some clients (ctr of containerd 1.6) close the streams when they learn
// of the end; and if the task has filled the pipe, afterwards. idle says that no process of the container is left.
func (s *Supervisor) say(line string, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stderr == nil || s.said {
		return
	}
	s.said = s.write(line, idle)
}

// sayNotes tells, at the end, of limits that the task has seen as an error that names none: processes that could not be
// started, layers that were full, connections that were reset.
func (s *Supervisor) sayNotes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.notes {
		if s.stderr != nil {
			s.write(line, true)
		}
	}
}

// write needs the lock.
func (s *Supervisor) write(line string, idle bool) bool {
	return writeNow(s.stderr, []byte("agentsafe: the container "+line+"\n"), idle)
}

// hangUp closes our duplicate.
func (s *Supervisor) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stderr != nil {
		s.stderr.Close()
		s.stderr = nil
	}
}

// writeNow reports whether it has written data. The file is in blocking mode, a mode that it shares with the container,
// so a pipe is asked not to wait for this one write. Where the kernel can't do that (before Linux 6.4), it is written if
// nobody else can fill the pipe meanwhile.
func writeNow(f *os.File, data []byte, idle bool) bool {
	var st unix.Stat_t
	fd := int(f.Fd())
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		_, err = unix.Pwritev2(fd, [][]byte{data}, -1, unix.RWF_NOWAIT)
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}} //nolint:gosec // descriptors fit
		if n, _ := unix.Poll(poll, 0); errors.Is(err, unix.EOPNOTSUPP) && idle && n == 1 {
			_, err = unix.Write(fd, data)
		}
	case unix.S_IFSOCK:
		err = unix.Sendto(fd, data, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	default:
		_, err = unix.Write(fd, data)
	}
	return err == nil
}
