package netns

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenSocketDiag opens a socket on which the kernel answers questions about the sockets of ns (sock_diag(7)): whoever has
// it can ask which control group made a socket, and needs no rights for that. ns is as for Install; the caller closes the
// socket.
func OpenSocketDiag(ns *os.File) (*os.File, error) {
	c, err := dialIn(ns, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open socket for questions about sockets: %w", err)
	}
	return os.NewFile(uintptr(c.fd), "sockets"), nil
}
