package gateway

import (
	"hash/fnv"
	"net/netip"
	"sync"
)

// maxNames bounds the table of names, which a task under a wildcard rule could fill.
const maxNames = 32768

// names gives every name that may be resolved an address of its own inside the container. A connection to that address
// is a connection to that name: nothing has to be guessed from what names have resolved to, two names never share an
// address, and a task that skips the question has no address to connect to.
//
// Addresses are derived from the name, so that a gateway that is started again gives the same ones to clients that have
// kept an answer.
type names struct {
	v4, v6 netip.Prefix
	mu     sync.Mutex
	byName map[string]uint32
	bySlot map[uint32]string
}

func newNames(v4, v6 netip.Prefix) *names {
	return &names{v4: v4, v6: v6, byName: map[string]uint32{}, bySlot: map[uint32]string{}}
}

// assign returns the addresses of a name; false if the table is full.
func (n *names) assign(name string) (v4, v6 netip.Addr, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	slot, known := n.byName[name]
	if !known {
		if len(n.byName) >= maxNames {
			return v4, v6, false
		}
		slot = n.free(name)
		n.byName[name], n.bySlot[slot] = slot, name
	}
	return n.address(n.v4, slot), n.address(n.v6, slot), true
}

// free finds the first free slot from the name's hash on.
func (n *names) free(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	slots := n.slots()
	for slot := h.Sum32() % slots; ; slot = (slot + 1) % slots {
		if _, taken := n.bySlot[slot]; !taken {
			return slot
		}
	}
}

// slots is how many addresses there are, without the first and last 256: the network, and what the container's own
// loopback address is taken from.
func (n *names) slots() uint32 { return 1<<(32-n.v4.Bits()) - 512 }

const firstSlot = 256

func (n *names) address(p netip.Prefix, slot uint32) netip.Addr {
	b := p.Addr().AsSlice()
	v := slot + firstSlot
	for i := 1; i <= 4; i++ {
		b[len(b)-i] |= byte(v >> (8 * (i - 1)))
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// lookup returns the name that an address stands for.
func (n *names) lookup(a netip.Addr) (string, bool) {
	a = a.Unmap()
	p := n.v4
	if a.Is6() {
		p = n.v6
	}
	if !p.Contains(a) {
		return "", false
	}
	b := a.AsSlice()
	if a.Is6() {
		for _, x := range b[p.Bits()/8 : 12] {
			if x != 0 {
				return "", false
			}
		}
	}
	mask := uint32(1)<<(32-n.v4.Bits()) - 1
	tail := b[len(b)-4:]
	v := uint32(tail[0])<<24 | uint32(tail[1])<<16 | uint32(tail[2])<<8 | uint32(tail[3])
	if a.Is4() {
		v &= mask
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.bySlot[v-firstSlot]
	return name, ok
}

// synthetic reports whether an address is of the ranges that stand for names.
func (n *names) synthetic(a netip.Addr) bool {
	a = a.Unmap()
	return n.v4.Contains(a) || n.v6.Contains(a)
}
