package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waitExit waits until the process of a pidfd has ended, at most for limit (0: as long as ctx lives). It reports
// whether it has. It holds no thread meanwhile.
func waitExit(ctx context.Context, pidfd *os.File, pid int, limit time.Duration) bool {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	// A description of its own, which may be non-blocking: with the flag on a shared one, somebody's waitid(2) would not
	// wait any more.
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if gone(pidfd) {
		if err == nil {
			unix.Close(fd) // somebody else's number by now
		}
		return true
	}
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) }) //nolint:errcheck // a pollable file takes one
	defer stop()
	ended := false
	err = conn.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // descriptors fit
		n, err := unix.Poll(poll, 0)
		for ; err != nil; n, err = unix.Poll(poll, 0) {
			time.Sleep(time.Millisecond) // ENOMEM: there may be no further event to be woken by
		}
		ended = n > 0
		return ended
	})
	return err == nil && ended
}

// gone reports whether the process of a pidfd has been reaped; a zombie has not.
func gone(pidfd *os.File) bool {
	return errors.Is(unix.PidfdSendSignal(int(pidfd.Fd()), 0, nil, 0), unix.ESRCH)
}

// exitStatus finds out how a process has ended that is somebody else's child: once its parent has reaped it, the kernel
// tells (PIDFD_INFO_EXIT, Linux 6.15, 7477d7dce48a "pidfs: allow to retrieve exit information"). Before Linux 6.15, or if nobody reaps it, the answer is Unknown.
func exitStatus(ctx context.Context, pidfd *os.File) int {
	end := time.Now().Add(reportTimeout)
	for delay := time.Millisecond; ctx.Err() == nil && time.Now().Before(end); delay = min(2*delay, 50*time.Millisecond) {
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		err := unix.IoctlPidfdInfo(int(pidfd.Fd()), &info)
		switch {
		case err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0:
			return shellStatus(syscall.WaitStatus(info.Exit_code)) //nolint:gosec // a wait status
		case err != nil && !errors.Is(err, unix.ESRCH):
			return Unknown // ENOTTY, EINVAL: an older kernel
		}
		time.Sleep(delay)
	}
	return Unknown
}

func shellStatus(ws syscall.WaitStatus) int {
	const signalBase = 128
	if ws.Signaled() {
		return signalBase + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// StatusText says an exit status in words.
func StatusText(status int) string {
	if status == Unknown {
		return "unknown"
	}
	return fmt.Sprint(status)
}
