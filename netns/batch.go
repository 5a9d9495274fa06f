package netns

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Message and attribute layouts are those of linux/netlink.h, nfnetlink.h and
// nf_tables.h: headers in host order, nf_tables integers in network order.

const (
	nlHeaderLen  = 16 // struct nlmsghdr
	nfGenLen     = 4  // struct nfgenmsg
	nlAttrNested = 0x8000
)

// batch is one nftables transaction: the kernel applies all of its messages
// in one generation or none.
type batch struct {
	buf []byte
	// steps[i] says what the message with sequence number i does, for errors.
	steps []string
	start int // of the open message
}

func newBatch(sizeBytes int) *batch {
	b := &batch{steps: make([]string, 0, 64), buf: make([]byte, 0, sizeBytes)}
	b.message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, "begin")
	b.end()
	return b
}

// close ends the transaction and asks for an acknowledgement of its last
// message: without one, silence would mean both success and a lost answer.
func (b *batch) close() []byte {
	flags := b.buf[b.start+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	b.message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, "end")
	b.end()
	return b.buf
}

// nft opens an nftables message for our family; end closes it.
func (b *batch) nft(msg uint16, flags uint16, step string) {
	b.message(unix.NFNL_SUBSYS_NFTABLES<<8|msg, flags, unix.NFPROTO_INET, 0, step)
}

func (b *batch) message(typ, flags uint16, family uint8, resID uint16, step string) {
	b.start = len(b.buf)
	ne := binary.NativeEndian
	b.buf = ne.AppendUint32(b.buf, 0)
	b.buf = ne.AppendUint16(b.buf, typ)
	b.buf = ne.AppendUint16(b.buf, flags|unix.NLM_F_REQUEST)
	b.buf = ne.AppendUint32(b.buf, uint32(len(b.steps)))
	b.buf = ne.AppendUint32(b.buf, 0) // port: the kernel fills it in
	b.buf = append(b.buf, family, unix.NFNETLINK_V0)
	b.buf = binary.BigEndian.AppendUint16(b.buf, resID)
	b.steps = append(b.steps, step)
}

func (b *batch) end() {
	binary.NativeEndian.PutUint32(b.buf[b.start:], uint32(len(b.buf)-b.start))
}

func (b *batch) bytes(typ uint16, data []byte) {
	b.header(typ, len(data))
	b.buf = append(b.buf, data...)
	b.pad()
}

func (b *batch) str(typ uint16, s string) {
	b.header(typ, len(s)+1)
	b.buf = append(b.buf, s...)
	b.buf = append(b.buf, 0)
	b.pad()
}

func (b *batch) u32(typ uint16, v uint32) {
	b.header(typ, 4)
	b.buf = binary.BigEndian.AppendUint32(b.buf, v)
}

func (b *batch) u64(typ uint16, v uint64) {
	b.header(typ, 8)
	b.buf = binary.BigEndian.AppendUint64(b.buf, v)
}

func (b *batch) nest(typ uint16, body func()) {
	at := len(b.buf)
	b.header(typ|nlAttrNested, 0)
	body()
	binary.NativeEndian.PutUint16(b.buf[at:], uint16(len(b.buf)-at))
}

func (b *batch) header(typ uint16, payload int) {
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(4+payload))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, typ)
}

func (b *batch) pad() {
	for len(b.buf)%4 != 0 {
		b.buf = append(b.buf, 0)
	}
}

// littleEndian is whether headers made here are those of enginePacket.
func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }
