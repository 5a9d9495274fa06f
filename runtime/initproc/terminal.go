package initproc

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// terminalNameBytes is more than what comes with a terminal: its name.
const terminalNameBytes = 4096

// ReceiveTerminal takes in the master of the terminal that a child with a console socket sends before it executes its
// program. socket is the host's end. The error is EPROTO if something else arrived. The caller owns the file, whose reads
// and writes block.
func ReceiveTerminal(socket *os.File) (*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(socket.Fd()), make([]byte, terminalNameBytes), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("receive terminal: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("receive terminal: no descriptor arrived: %w", unix.EPROTO)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("receive terminal: no descriptor arrived: %w", unix.EPROTO)
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}
