package container

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// stdio is what a process gets as its standard streams. The host's own null device is never among them: through the
// descriptor root in a container can change the mode and the owner of a node that everybody on the host needs
// (TestAttack_ModeOfHostDevice). It gets the null device of the container, and where that is none, the host's by a mount
// through which nothing of the node can be changed.
type stdio struct {
	// nulls has a bit for each stream that is the null device, pipes for each that is a pipe.
	nulls, pipes uint
	null         *os.File
}

// donate hands three streams over; nil is the null device.
func (s *stdio) donate(don *initproc.Donation, streams ...*os.File) error {
	for i, f := range streams {
		if f == nil || isNull(f) {
			if s.null == nil {
				var err error
				if s.null, err = rootfs.OpenNull(); err != nil {
					return err
				}
			}
			f, s.nulls = s.null, s.nulls|1<<i
		} else if isPipe(f) {
			s.pipes |= 1 << i
		}
		don.Add(f)
	}
	return nil
}

func (s *stdio) close() {
	if s.null != nil {
		s.null.Close()
	}
}

func isPipe(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}
