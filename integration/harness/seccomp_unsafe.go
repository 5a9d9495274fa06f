package harness

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Notification is a system call that waits for the answer of whoever holds its filter's listener.
// Source: seccomp_unotify(2).
type Notification struct {
	ID  uint64
	PID int // as the holder's pid namespace has it
	NR  int // number of the system call
}

const (
	notifyReceive = 0xc0502100
	notifySend    = 0xc0182101
)

// ReceiveNotification waits for a call. The error is unix.ENOENT if its process ended meanwhile.
func ReceiveNotification(listener *os.File) (Notification, error) {
	var buf [80]byte
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener.Fd(), notifyReceive, uintptr(unsafe.Pointer(&buf[0]))); errno != 0 {
		return Notification{}, fmt.Errorf("receive notification: %w", errno)
	}
	return Notification{
		ID: binary.NativeEndian.Uint64(buf[0:]), PID: int(binary.NativeEndian.Uint32(buf[8:])), NR: int(int32(binary.NativeEndian.Uint32(buf[16:]))), //nolint:gosec // the kernel's
	}, nil
}

// AnswerNotification makes the call fail with errno.
func AnswerNotification(listener *os.File, n Notification, errno unix.Errno) error {
	var buf [24]byte
	binary.NativeEndian.PutUint64(buf[0:], n.ID)
	binary.NativeEndian.PutUint32(buf[16:], uint32(-int32(errno))) //nolint:gosec // as the kernel has it
	if _, _, got := unix.Syscall(unix.SYS_IOCTL, listener.Fd(), notifySend, uintptr(unsafe.Pointer(&buf[0]))); got != 0 {
		return fmt.Errorf("answer notification: %w", got)
	}
	return nil
}
