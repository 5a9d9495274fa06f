package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotInstalled is returned by Finalize for a namespace without the table.
var ErrNotInstalled = errors.New("rules are not installed")

// Install puts the rules into force in ns, an open handle of a network
// namespace other than the caller's; the caller keeps it. It works before any
// link exists and returns once the kernel enforces the rules.
//
// It is one nftables transaction: on error nothing has changed. A second
// Install of equal rules replaces them without a moment in between and keeps
// what Finalize found. Different rules in one namespace add up: a packet must
// pass all of them. Modes open and host do nothing.
//
// Errors: ErrOwnNamespace; EPERM without CAP_SYS_ADMIN over ns or
// CAP_NET_ADMIN in it; otherwise the message that the kernel refused, usually
// for want of a module (NF_TABLES_INET, NFT_CT, NFT_FIB_INET, NFT_REJECT_INET).
func (r *Rules) Install(ns *os.File) error {
	if len(r.packet) == 0 {
		return nil
	}
	nft, err := dialIn(ns, unix.NETLINK_NETFILTER)
	if err == nil {
		defer nft.Close()
		err = nft.transact(r.packet, func() []string {
			_, steps := planTable(r.policy).encode()
			return steps
		})
	}
	if err != nil {
		return fmt.Errorf("install network rules: %w", err)
	}
	return nil
}

// transact sends a transaction and reads the kernel's verdict. The last
// message asked for an acknowledgement; an error of any message, or of the
// commit as a whole, means that nothing was changed. steps names the messages,
// for errors.
func (c *conn) transact(packet []byte, steps func() []string) error {
	if err := c.send(packet); err != nil {
		return err
	}
	acked := false
	var first error
	for {
		err := c.receive(func(m message) error {
			if m.typ != unix.NLMSG_ERROR {
				return nil
			}
			switch e := m.errno(); {
			case e == 0:
				acked = true
			case first == nil:
				first = fmt.Errorf("%s: %w", step(steps(), m.seq), explain(e))
			}
			return nil // several messages may be wrong, and the next transaction's verdict comes after them
		})
		switch {
		case errors.Is(err, errDrained) && first != nil:
			return first
		case errors.Is(err, errDrained) && acked:
			return nil
		case err != nil:
			return err
		}
	}
}

func step(steps []string, seq uint32) string {
	if int(seq) < len(steps) {
		return steps[seq]
	}
	return fmt.Sprintf("message %d", seq)
}

// explain adds the cause to the errors that have one usual cause here.
func explain(e unix.Errno) error {
	switch e {
	case unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT:
		return fmt.Errorf("kernel without this part of nftables: %w", e)
	case unix.ENOMEM, unix.ENFILE:
		return fmt.Errorf("kernel out of room for rules: %w", e)
	default:
		return e
	}
}
