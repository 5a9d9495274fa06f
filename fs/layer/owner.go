package layer

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/thread"
)

// owner runs functions on a thread that has the rights of one user for files: what it writes belongs to that user, and
// what the user may not write fails. The thread ends with close and is not used again.
type owner struct {
	work chan func()
}

// newOwner starts the thread. For root there is none: functions run as they are.
func newOwner(uid, gid uint32) (*owner, error) {
	o := &owner{work: make(chan func())}
	ready := make(chan error)
	thread.Go(func() {
		ready <- become(uid, gid)
		for f := range o.work {
			f()
		}
	})
	if err := <-ready; err != nil {
		o.close()
		return nil, fmt.Errorf("become owner %d:%d of the folder: %w", uid, gid, err)
	}
	return o, nil
}

// become gives the calling thread the ids. setfsuid(2) takes the capabilities for files away as well.
func become(uid, gid uint32) error {
	// Raw calls: the wrappers of the standard library would change all threads.
	if uid != 0 {
		groups := []uint32{gid}
		if err := setThreadGroups(groups); err != nil {
			return err
		}
	}
	if _, err := unix.SetfsgidRetGid(int(gid)); err != nil {
		return err
	}
	if _, err := unix.SetfsuidRetUid(int(uid)); err != nil {
		return err
	}
	// They report no error: ask what holds now.
	const ask = -1
	if got, err := unix.SetfsuidRetUid(ask); err != nil || got != int(uid) {
		return unix.EPERM
	}
	if got, err := unix.SetfsgidRetGid(ask); err != nil || got != int(gid) {
		return unix.EPERM
	}
	return nil
}

// do runs f on the thread and waits for it.
func (o *owner) do(f func() error) error {
	done := make(chan error)
	o.work <- func() { done <- f() }
	return <-done
}

func (o *owner) close() { close(o.work) }
