package netns

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Registers: statements use the first 16-byte register; concatenated keys
// fill the 4-byte registers from the same start.
const (
	reg    = unix.NFT_REG_1
	reg32  = unix.NFT_REG32_00
	l3Base = unix.NFT_PAYLOAD_NETWORK_HEADER
	l4Base = unix.NFT_PAYLOAD_TRANSPORT_HEADER
)

// Values of linux/netfilter/nf_conntrack_common.h and nft's ct state bits.
const (
	ctEstablished = 2
	ctRelated     = 4
	ctReply       = 1 // IP_CT_DIR_REPLY
)

// expr writes one nftables expression as a list element.
type expr func(b *batch)

func named(name string, body func(b *batch)) expr {
	return func(b *batch) {
		b.nest(unix.NFTA_LIST_ELEM, func() {
			b.str(unix.NFTA_EXPR_NAME, name)
			b.nest(unix.NFTA_EXPR_DATA, func() { body(b) })
		})
	}
}

func payload(dreg, base, offset, length uint32) expr {
	return named("payload", func(b *batch) {
		b.u32(unix.NFTA_PAYLOAD_DREG, dreg)
		b.u32(unix.NFTA_PAYLOAD_BASE, base)
		b.u32(unix.NFTA_PAYLOAD_OFFSET, offset)
		b.u32(unix.NFTA_PAYLOAD_LEN, length)
	})
}

func meta(dreg, key uint32) expr {
	return named("meta", func(b *batch) {
		b.u32(unix.NFTA_META_DREG, dreg)
		b.u32(unix.NFTA_META_KEY, key)
	})
}

func ct(key uint32) expr {
	return named("ct", func(b *batch) {
		b.u32(unix.NFTA_CT_DREG, reg)
		b.u32(unix.NFTA_CT_KEY, key)
	})
}

// fibType loads the route type of the source or destination address.
func fibType(flags uint32) expr {
	return named("fib", func(b *batch) {
		b.u32(unix.NFTA_FIB_DREG, reg)
		b.u32(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
		b.u32(unix.NFTA_FIB_FLAGS, flags)
	})
}

// routingHeader loads 1 if the IPv6 packet has a routing header.
func routingHeader() expr {
	return named("exthdr", func(b *batch) {
		b.u32(unix.NFTA_EXTHDR_DREG, reg)
		b.bytes(unix.NFTA_EXTHDR_TYPE, []byte{unix.IPPROTO_ROUTING})
		b.u32(unix.NFTA_EXTHDR_OFFSET, 0)
		b.u32(unix.NFTA_EXTHDR_LEN, 1)
		b.u32(unix.NFTA_EXTHDR_FLAGS, unix.NFT_EXTHDR_F_PRESENT)
		b.u32(unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_IPV6)
	})
}

func compare(op uint32, value ...byte) expr {
	return named("cmp", func(b *batch) {
		b.u32(unix.NFTA_CMP_SREG, reg)
		b.u32(unix.NFTA_CMP_OP, op)
		b.nest(unix.NFTA_CMP_DATA, func() { b.bytes(unix.NFTA_DATA_VALUE, value) })
	})
}

func equal(value ...byte) expr { return compare(unix.NFT_CMP_EQ, value...) }

func mask(bits ...byte) expr {
	return named("bitwise", func(b *batch) {
		b.u32(unix.NFTA_BITWISE_SREG, reg)
		b.u32(unix.NFTA_BITWISE_DREG, reg)
		b.u32(unix.NFTA_BITWISE_LEN, uint32(len(bits)))
		b.nest(unix.NFTA_BITWISE_MASK, func() { b.bytes(unix.NFTA_DATA_VALUE, bits) })
		b.nest(unix.NFTA_BITWISE_XOR, func() { b.bytes(unix.NFTA_DATA_VALUE, make([]byte, len(bits))) })
	})
}

func lookup(sreg uint32, set string) expr {
	return named("lookup", func(b *batch) {
		b.str(unix.NFTA_LOOKUP_SET, set)
		b.u32(unix.NFTA_LOOKUP_SREG, sreg)
	})
}

func reject(typ uint32, code byte) expr {
	return named("reject", func(b *batch) {
		b.u32(unix.NFTA_REJECT_TYPE, typ)
		b.bytes(unix.NFTA_REJECT_ICMP_CODE, []byte{code})
	})
}

// verdict is accept, drop, or goto a chain.
func verdict(code int32, chain string) expr {
	return named("immediate", func(b *batch) {
		b.u32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		b.nest(unix.NFTA_IMMEDIATE_DATA, func() {
			b.nest(unix.NFTA_DATA_VERDICT, func() {
				b.u32(unix.NFTA_VERDICT_CODE, uint32(code))
				if chain != "" {
					b.str(unix.NFTA_VERDICT_CHAIN, chain)
				}
			})
		})
	})
}

// isFamily matches IPv4 or IPv6: an inet chain sees both.
func isFamily(v4 bool) []expr {
	if v4 {
		return []expr{meta(reg, unix.NFT_META_NFPROTO), equal(unix.NFPROTO_IPV4)}
	}
	return []expr{meta(reg, unix.NFT_META_NFPROTO), equal(unix.NFPROTO_IPV6)}
}

// loadDaddr matches the family and loads its destination address.
func loadDaddr(v4 bool) []expr {
	if v4 {
		return append(isFamily(v4), payload(reg, l3Base, 16, 4))
	}
	return append(isFamily(v4), payload(reg, l3Base, 24, 16))
}

// inPrefix matches destinations within a prefix.
func inPrefix(p netip.Prefix) []expr {
	e := loadDaddr(p.Addr().Is4())
	if p.Bits() < p.Addr().BitLen() {
		m := make([]byte, p.Addr().BitLen()/8)
		for i := range m {
			m[i] = ^byte(0xff >> min(max(p.Bits()-8*i, 0), 8))
		}
		e = append(e, mask(m...))
	}
	return append(e, equal(p.Addr().AsSlice()...))
}

// loadEndpoint matches the family and loads address, protocol and port into
// consecutive registers, as the key of a concatenated set.
func loadEndpoint(v4 bool) []expr {
	e, next := isFamily(v4), uint32(reg32)
	if v4 {
		e = append(e, payload(next, l3Base, 16, 4))
		next++
	} else {
		e = append(e, payload(next, l3Base, 24, 16))
		next += 4
	}
	return append(e, meta(next, unix.NFT_META_L4PROTO), payload(next+1, l4Base, 2, 2))
}

// ctState matches any of the state bits.
func ctState(bits uint32) []expr {
	return []expr{ct(unix.NFT_CT_STATE), mask(host32(bits)...), compare(unix.NFT_CMP_NEQ, host32(0)...)}
}

func host64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

func host32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
