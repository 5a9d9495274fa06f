package gateway

import (
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the loops, made without telling the Go runtime. None of them waits, but for [waitHere], which says how
// long it may.
//
// A call that the runtime is told of may be waited for: its monitor looks at such threads every 20 us while there are any,
// takes their processors away and hands them on, and both a monitor that is up and a processor that has to be got back cost
// changes of thread. A loop is in one call or another nearly always, so the monitor would never rest.

// readFD reads from a descriptor that does not block.
func readFD(fd int, b []byte) (int, error) {
	n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	runtime.KeepAlive(b)
	return result(n, e)
}

// sendFD writes to a socket, without a signal if nobody can read it any more. b is not empty.
func sendFD(fd int, b []byte) (int, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
	runtime.KeepAlive(b)
	return result(n, e)
}

// spliceFD moves up to n bytes between a pipe and a socket.
func spliceFD(from, to, n int) (int, error) {
	moved, _, e := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	return result(moved, e)
}

// acceptFD takes a connection off a listening socket that does not block. The caller owns it.
func acceptFD(fd int) (int, error) {
	conn, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0, 0)
	return result(conn, e)
}

// connectTo begins to connect a socket of the address's family.
func connectTo(fd int, to netip.AddrPort) error {
	port := [2]byte{byte(to.Port() >> 8), byte(to.Port())} // in network order, as the structures want it
	var e unix.Errno
	if a := to.Addr(); a.Is4() {
		sa := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: *(*uint16)(unsafe.Pointer(&port)), Addr: a.As4()}
		_, _, e = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	} else {
		sa := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: *(*uint16)(unsafe.Pointer(&port)), Addr: a.As16()}
		_, _, e = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	}
	_, err := result(0, e)
	return err
}

// shutdownFD ends one direction of a connection.
func shutdownFD(fd int) error {
	_, _, e := unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
	_, err := result(0, e)
	return err
}

// closeFD closes a socket or a pipe, neither of which lingers.
func closeFD(fd int) {
	unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) //nolint:errcheck // the descriptor is gone in any case
}

// setOption sets a socket option that is a number.
func setOption(fd, level, name, value int) error {
	v := int32(value) //nolint:gosec // flags and seconds
	_, _, e := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v), 0)
	_, err := result(0, e)
	return err
}

// option reads a socket option into b and returns how long it is.
func option(fd, level, name int, b []byte) (int, error) {
	n := uint32(len(b)) //nolint:gosec // a structure's length
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(&n)), 0)
	runtime.KeepAlive(b)
	return result(uintptr(n), e)
}

// waitHere waits for events, milliseconds at most, and keeps the thread's processor of the Go runtime meanwhile.
func waitHere(epoll int, events []unix.EpollEvent, milliseconds int) (int, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)), uintptr(milliseconds), 0, 0)
	runtime.KeepAlive(events)
	return result(n, e)
}

func result(n uintptr, e unix.Errno) (int, error) {
	if e != 0 {
		return -1, e
	}
	return int(n), nil //nolint:gosec // a count or a descriptor
}
