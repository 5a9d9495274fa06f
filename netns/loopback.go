package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// LoopbackUp sets lo up in ns, which is as for Install: a new namespace has it
// down, and the runtime-spec leaves it to the runtime. The kernel then adds
// 127.0.0.1/8 and ::1/128.
func LoopbackUp(ns *os.File) error {
	route, err := dialIn(ns, unix.NETLINK_ROUTE)
	if err == nil {
		defer route.Close()
		err = route.loopbackUp()
	}
	if err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	return nil
}

// loopbackUp sends RTM_NEWLINK with struct ifinfomsg alone.
func (c *conn) loopbackUp() error {
	ne := binary.NativeEndian
	p := ne.AppendUint32(nil, nlHeaderLen+unix.SizeofIfInfomsg)
	p = ne.AppendUint16(p, unix.RTM_NEWLINK)
	p = ne.AppendUint16(p, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	p = append(p, make([]byte, 12)...) // sequence, port, family and type
	p = ne.AppendUint32(p, loopbackIndex)
	p = ne.AppendUint32(p, unix.IFF_UP) // flags
	p = ne.AppendUint32(p, unix.IFF_UP) // which of them change
	if err := c.send(p); err != nil {
		return err
	}
	return c.acknowledged()
}

// acknowledged waits for the answer to a message that asked for one.
func (c *conn) acknowledged() error {
	acked := false
	err := c.receive(func(m message) error {
		if m.typ != unix.NLMSG_ERROR {
			return nil
		}
		if e := m.errno(); e != 0 {
			return e
		}
		acked = true
		return nil
	})
	if err == nil && !acked {
		err = errors.New("no acknowledgement")
	}
	return err
}
