package netns

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// netLink is one network device of a namespace.
type netLink struct {
	index, flags uint32
	name         string
}

// links lists the devices of the namespace.
func (c *conn) links() ([]netLink, error) {
	ne := binary.NativeEndian
	h := make([]byte, unix.SizeofIfInfomsg, unix.SizeofIfInfomsg+8)
	h = appendAttr(h, unix.IFLA_EXT_MASK, host32(rtextFilterSkipStats))
	return dump(c, unix.RTM_GETLINK, h, func(body []byte, out []netLink) []netLink {
		if len(body) < unix.SizeofIfInfomsg {
			return out
		}
		l := netLink{index: ne.Uint32(body[4:]), flags: ne.Uint32(body[8:])}
		eachAttr(body[unix.SizeofIfInfomsg:], func(typ uint16, data []byte) {
			if typ == unix.IFLA_IFNAME {
				l.name = unix.ByteSliceToString(data)
			}
		})
		return append(out, l)
	})
}

// lasting returns the requests that add the device's permanent addresses of global scope again, without its index.
func (c *conn) lasting(index uint32) ([][]byte, error) {
	return dump(c, unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg), func(body []byte, out [][]byte) [][]byte {
		const flags, scope, at = 2, 3, 4
		if len(body) < unix.SizeofIfAddrmsg || binary.NativeEndian.Uint32(body[at:]) != index || body[flags]&unix.IFA_F_PERMANENT == 0 ||
			body[scope] != unix.RT_SCOPE_UNIVERSE {
			return out
		}
		again := append([]byte{body[0], body[1], 0, unix.RT_SCOPE_UNIVERSE}, 0, 0, 0, 0)
		eachAttr(body[unix.SizeofIfAddrmsg:], func(typ uint16, data []byte) {
			switch typ {
			case unix.IFA_LOCAL, unix.IFA_ADDRESS, unix.IFA_BROADCAST:
				again = appendAttr(again, typ, data)
			}
		})
		return append(out, again)
	})
}

// MoveLink moves a network device of the caller's namespace into ns, where it is called newName ("" keeps its name; one
// with %d gets the first number that is free), keeps its permanent addresses of global scope, and is set up. It is never
// moved back: with the namespace a physical device returns to the host by the kernel's doing, a virtual one ends. A name
// that ns has already is an error, before anything has changed. Source: runtime-spec 1.3.0, config-linux.md "Network
// Devices".
func MoveLink(ns *os.File, name, newName string) error {
	if err := moveLink(ns, name, newName); err != nil {
		return fmt.Errorf("move network device %q: %w", name, err)
	}
	return nil
}

func moveLink(ns *os.File, name, newName string) error {
	if newName == "" {
		newName = name
	}
	host, err := dial(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer host.Close()
	there, err := dialIn(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer there.Close()
	ours, err := host.links()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(ours, func(l netLink) bool { return l.name == name })
	if at < 0 {
		return unix.ENODEV
	}
	before, err := there.links()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(before, func(l netLink) bool { return l.name == newName }) {
		return fmt.Errorf("the container has a device %q already: %w", newName, unix.EEXIST)
	}
	// The kernel would first take it over by its old name, and that may be another device's there.
	if slices.ContainsFunc(before, func(l netLink) bool { return l.name == name }) && !strings.Contains(newName, "%d") {
		return fmt.Errorf("the container has a device %q already: %w", name, unix.EEXIST)
	}
	addresses, err := host.lasting(ours[at].index)
	if err != nil {
		return err
	}
	body := linkBody(ours[at].index, 0)
	body = appendAttr(body, unix.IFLA_NET_NS_FD, host32(uint32(ns.Fd())))
	body = appendAttr(body, unix.IFLA_IFNAME, append([]byte(newName), 0))
	if err := host.request(unix.RTM_NEWLINK, 0, body); err != nil {
		return err
	}
	return there.furnish(before, addresses)
}

// furnish gives the device that was not there before its addresses and sets it up.
func (c *conn) furnish(before []netLink, addresses [][]byte) error {
	now, err := c.links()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(now, func(l netLink) bool {
		return !slices.ContainsFunc(before, func(b netLink) bool { return b.index == l.index })
	})
	if at < 0 {
		return fmt.Errorf("after the move: %w", unix.ENODEV)
	}
	for _, a := range addresses {
		binary.NativeEndian.PutUint32(a[4:], now[at].index)
		if err := c.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, a); err != nil {
			return fmt.Errorf("add an address: %w", err)
		}
	}
	if err := c.request(unix.RTM_NEWLINK, 0, linkBody(now[at].index, unix.IFF_UP)); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}

// linkBody is struct ifinfomsg that sets flags, and changes no other.
func linkBody(index, flags uint32) []byte {
	ne := binary.NativeEndian
	b := make([]byte, 4, unix.SizeofIfInfomsg)
	b = ne.AppendUint32(b, index)
	b = ne.AppendUint32(b, flags)
	return ne.AppendUint32(b, flags)
}
