package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// What the gateway never sees, because the rules refuse it (UDP other than DNS, ICMP, other protocols), is told to it by the
// kernel: the last rule hands copies of the packets' beginnings to whoever listens to refusedGroup.

const (
	refusedGroup = 0x6167
	// refusedBytes are enough for the headers: IPv6 without extensions, and ports.
	refusedBytes = 64
	// refusedRate and refusedBurst bound what a task can make the kernel tell. The packets beyond are refused like the others.
	refusedRate, refusedBurst = 20, 40
)

// Constants of linux/netfilter/nfnetlink_log.h and nf_tables.h that x/sys lacks.
const (
	nfulnlMsgConfig  = 1
	nfulaCfgCmd      = 1
	nfulaCfgMode     = 2
	nfulaCfgQthresh  = 5
	nfulnlCmdBind    = 1
	nfulnlCopyPacket = 2
	nftaLogGroup     = 1
	nftaLogSnaplen   = 3
	nftaLimitRate    = 1
	nftaLimitUnit    = 2
	nftaLimitBurst   = 3
	nftaLimitType    = 4
	nftaLimitFlags   = 5
)

// OpenRefusedLog opens the socket from which the beginnings of packets can be read that the gateway's rules have refused,
// as messages of nfnetlink_log. Whoever has it can read from it and do nothing else, unless it has CAP_NET_ADMIN itself. ns
// is as for Install; the caller closes the socket. An error says that this kernel has no such log, or that somebody
// listens already; then refusals are as good, and nobody hears of them.
func OpenRefusedLog(ns *os.File) (*os.File, error) {
	c, err := dialIn(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open log of refused packets: %w", err)
	}
	b := &batch{}
	b.message(unix.NFNL_SUBSYS_ULOG<<8|nfulnlMsgConfig, unix.NLM_F_ACK, unix.AF_UNSPEC, refusedGroup, "listen to refused packets")
	b.bytes(nfulaCfgCmd, []byte{nfulnlCmdBind})
	b.bytes(nfulaCfgMode, []byte{0, 0, 0, refusedBytes, nfulnlCopyPacket, 0})
	b.u32(nfulaCfgQthresh, 1) // at once
	b.end()
	if err := c.transact(b.buf, func() []string { return b.steps }); err != nil {
		c.Close()
		return nil, fmt.Errorf("open log of refused packets: %w", err)
	}
	return os.NewFile(uintptr(c.fd), "refused"), nil
}

// tellRefused is the rule before the last one.
func tellRefused() rule {
	return rule{fmt.Sprintf("limit rate %d/second burst %d packets log group %d snaplen %d", refusedRate, refusedBurst, refusedGroup, refusedBytes), []expr{
		named("limit", func(b *batch) {
			b.u64(nftaLimitRate, refusedRate)
			b.u64(nftaLimitUnit, 1)
			b.u32(nftaLimitBurst, refusedBurst)
			b.u32(nftaLimitType, 0) // packets
			b.u32(nftaLimitFlags, 0)
		}),
		named("log", func(b *batch) {
			b.bytes(nftaLogGroup, []byte{refusedGroup >> 8, refusedGroup & 0xff})
			b.u32(nftaLogSnaplen, refusedBytes)
		}),
	}}
}

// lacks reports whether an error says that the kernel has no such part.
func lacks(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
}
