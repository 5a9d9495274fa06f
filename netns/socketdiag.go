package netns

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenSocketDiag opens sockets on which the kernel answers questions about the sockets of ns (sock_diag(7)): whoever has
// them can ask which control group made a socket, and needs no rights for that. There are two, since an answer of many parts
// and others would get mixed up in one. ns is as for Install; the caller closes them.
func OpenSocketDiag(ns *os.File) ([]*os.File, error) {
	var out []*os.File
	for range 2 {
		c, err := dialIn(ns, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			for _, f := range out {
				f.Close()
			}
			return nil, fmt.Errorf("open socket for questions about sockets: %w", err)
		}
		out = append(out, os.NewFile(uintptr(c.fd), "diag"))
	}
	return out, nil
}
