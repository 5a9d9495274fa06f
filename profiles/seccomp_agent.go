package profiles

import "slices"

// Clone flags. Source: linux/sched.h.
const (
	cloneNewNS     = 0x00020000
	cloneNewCgroup = 0x02000000
	cloneNewUTS    = 0x04000000
	cloneNewIPC    = 0x08000000
	cloneNewUser   = 0x10000000
	cloneNewPID    = 0x20000000
	cloneNewNet    = 0x40000000

	// cloneNewAny is what moby's profile checks too. CLONE_NEWTIME is not in it: clone(2) takes that bit as part of the
	// exit signal.
	cloneNewAny = cloneNewNS | cloneNewCgroup | cloneNewUTS | cloneNewIPC | cloneNewUser | cloneNewPID | cloneNewNet
	// cloneNewTime is for unshare(2) only.
	cloneNewTime = 0x00000080
)

// Socket families and protocols. Source: linux/socket.h, linux/in.h, linux/netlink.h.
const (
	afUnix, afInet, afInet6, afNetlink = 1, 2, 10, 16

	netlinkRoute = 0

	ipprotoDCCP, ipprotoL2TP, ipprotoSCTP, ipprotoSMC, ipprotoMPTCP = 33, 115, 132, 256, 262

	sockStream, sockDgram, sockRaw, sockRDM, sockSeqpacket, sockDCCP = 1, 2, 3, 4, 5, 6

	sockTypeMask, sockPacket = 0xf, 10
)

// Requests of ioctl(2). Source: asm-generic/ioctls.h.
const tiocsti, tioclinux, tiocsetd = 0x5412, 0x541c, 0x5423

// personality(2) values. Source: linux/personality.h.
const (
	perLinux, perLinux32 = 0, 8
	uname26              = 0x20000
	addrNoRandomize      = 0x40000
	personalityQuery     = 0xffffffff
)

const lower32 = 0xffffffff

// agentFilter is the filter of ours: allowed by name, the rest refused, for every profile but none.
func agentFilter(p *Profile, goarch string) *SeccompFilter {
	b := &filterBuilder{profile: p, out: &SeccompFilter{
		Name: p.Name, Arch: goarch,
		BadArch: SeccompAction{Do: DoErrno, Errno: eNOSYS},
		Unknown: &SeccompAction{Do: DoErrno, Errno: eNOSYS},
		Default: SeccompAction{Do: DoErrno, Errno: ePERM},
	}}
	b.unconditional()
	b.clone()
	b.personality()
	b.sockets()
	b.terminal()
	b.ports()
	return b.out
}

// filterBuilder collects rules. chosen are the calls that a pack or the profile's own lists decide about as a whole: no
// further rule may be added for those, because libseccomp decides about overlapping rules by its own order.
type filterBuilder struct {
	profile *Profile
	out     *SeccompFilter
	chosen  []string
}

// unconditional decides about what needs no look at arguments. The profile's deny list wins over its allow list, and
// both win over everything built in.
func (b *filterBuilder) unconditional() {
	s := &b.profile.Syscalls
	var added []string
	if b.profile.HasPack(PackDebug) {
		added = append(added, debugCalls()...)
	}
	if b.profile.HasPack(PackBrowser) {
		added = append(added, "setns")
	}
	if b.profile.HasPack(PackContainers) {
		added = append(append(added, mountCalls()...), containerCalls()...)
	}
	added = append(added, s.Allow...)
	b.chosen = slices.Concat(added, s.Deny)

	base := baseAllowed()
	if len(b.chosen) > 0 {
		slices.Sort(added)
		added = without(slices.Compact(added), s.Deny)
		base = without(base, b.chosen)
	}
	b.rule(base, SeccompAction{Do: DoAllow})
	b.rule(added, SeccompAction{Do: DoAllow})

	var no []string
	for _, r := range refused() {
		no = append(no, r.names...)
	}
	if b.profile.HasPack(PackBrowser) {
		no = without(no, []string{"unshare"}) // has conditions then
	}
	if len(b.chosen) > 0 {
		no = append(without(no, b.chosen), s.Deny...)
	}
	b.rule(no, SeccompAction{Do: DoErrno, Errno: ePERM})
}

// without returns names but for those in the other list; it may reuse the first.
func without(names, other []string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(other, n) })
}

func (b *filterBuilder) rule(names []string, do SeccompAction, args ...SeccompArg) {
	if len(names) > 0 {
		b.out.Rules = append(b.out.Rules, SeccompRule{Names: names, Action: do, Args: args})
	}
}

// conditional adds a rule unless the profile decided about the call as a whole.
func (b *filterBuilder) conditional(name string, do SeccompAction, args ...SeccompArg) {
	if !slices.Contains(b.chosen, name) {
		b.rule([]string{name}, do, args...)
	}
}

func (b *filterBuilder) refuse(r SeccompRefusal) {
	if !slices.Contains(b.profile.Syscalls.Allow, r.Syscall) {
		b.out.Refuse = append(b.out.Refuse, r)
	}
}

// clone keeps threads and processes, and refuses namespaces. clone3 has its flags behind a pointer where no filter can
// look: ENOSYS makes every libc fall back to clone (moby#42680).
func (b *filterBuilder) clone() {
	allow := SeccompAction{Do: DoAllow}
	mask := uint64(cloneNewAny)
	if b.profile.HasPack(PackBrowser) {
		mask &^= cloneNewUser | cloneNewPID | cloneNewNet
		b.conditional("unshare", allow, SeccompArg{Index: 0, Op: OpMasked, Mask: mask | cloneNewTime, Value: 0})
	}
	b.conditional("clone", allow, SeccompArg{Index: 0, Op: OpMasked, Mask: mask, Value: 0})
	b.conditional("clone3", SeccompAction{Do: DoErrno, Errno: eNOSYS})
}

func (b *filterBuilder) personality() {
	values := []uint64{perLinux, perLinux32, uname26, uname26 | perLinux32, personalityQuery}
	if b.profile.HasPack(PackDebug) {
		values = append(values, addrNoRandomize) // gdb runs its program so (moby#43011)
	}
	for _, v := range values {
		// The kernel takes 32 bits; -1 comes sign-extended or not.
		b.conditional("personality", SeccompAction{Do: DoAllow}, SeccompArg{Index: 0, Op: OpMasked, Mask: lower32, Value: v})
	}
}

// sockets allows the families that programs use. Others are each a driver's worth of kernel code, and many don't know
// network namespaces: they answer what a kernel without them answers, so that programs fall back. Of netlink, routing is
// what getifaddrs(3) needs; libaudit takes EPROTONOSUPPORT as a kernel without audit.
func (b *filterBuilder) sockets() {
	allow := SeccompAction{Do: DoAllow}
	family := func(op SeccompOp, v uint64) SeccompArg { return SeccompArg{Index: 0, Op: op, Value: v} }
	protocol := func(op SeccompOp, v uint64) SeccompArg { return SeccompArg{Index: 2, Op: op, Value: v} }
	kind := func(v uint64) SeccompArg { return SeccompArg{Index: 1, Op: OpMasked, Mask: sockTypeMask, Value: v} }
	b.conditional("socket", allow, family(OpEqual, afUnix))
	for _, f := range []uint64{afInet, afInet6} {
		for _, k := range []uint64{sockStream, sockDgram, sockRaw} {
			b.conditional("socket", allow, family(OpEqual, f), kind(k))
		}
		// With protocol 0 these are SCTP and DCCP, where the host has them loaded. Source: net/ipv4/af_inet.c, inet_create.
		for _, k := range []uint64{sockRDM, sockSeqpacket, sockDCCP} {
			b.conditional("socket", SeccompAction{Do: DoErrno, Errno: eSOCKTNOSUPPORT}, family(OpEqual, f), kind(k))
		}
	}
	b.conditional("socket", allow, family(OpEqual, afNetlink), protocol(OpEqual, netlinkRoute))
	b.conditional("socket", SeccompAction{Do: DoErrno, Errno: ePROTONOSUPPORT}, family(OpEqual, afNetlink), protocol(OpGreater, netlinkRoute))
	for f := range uint64(afNetlink) {
		if f != afUnix && f != afInet && f != afInet6 {
			b.conditional("socket", SeccompAction{Do: DoErrno, Errno: eAFNOSUPPORT}, family(OpEqual, f))
		}
	}
	b.conditional("socket", SeccompAction{Do: DoErrno, Errno: eAFNOSUPPORT}, family(OpGreater, afNetlink))

	// The kernel makes two sockets before it asks the family whether it has pairs, so a family must be refused here too.
	b.conditional("socketpair", allow, family(OpEqual, afUnix))
	b.conditional("socketpair", SeccompAction{Do: DoErrno, Errno: eOPNOTSUPP}, family(OpLess, afUnix))
	b.conditional("socketpair", SeccompAction{Do: DoErrno, Errno: eOPNOTSUPP}, family(OpGreater, afUnix))

	// Landlock's TCP rules and nftables' TCP matches don't see MPTCP; Go's listeners fall back to TCP. SMC (since Linux 6.11 a
	// protocol of these families) opens its TCP connections in the kernel, where Landlock does not look. The other protocols
	// are drivers of their own that a socket call loads.
	for _, v := range []uint32{ipprotoDCCP, ipprotoL2TP, ipprotoSCTP, ipprotoSMC, ipprotoMPTCP} {
		b.refuse(SeccompRefusal{Syscall: "socket", Arg: 2, Value: v, Errno: ePROTONOSUPPORT})
	}
	// An AF_INET socket of this type becomes an AF_PACKET one. Source: net/socket.c, __sock_create.
	b.refuse(SeccompRefusal{Syscall: "socket", Arg: 1, Mask: sockTypeMask, Value: sockPacket, Errno: eAFNOSUPPORT})
}

// terminal refuses to type into, or to paste into, a terminal that is shared with somebody outside, and to change a
// terminal's line discipline, which loads drivers.
func (b *filterBuilder) terminal() {
	for _, v := range []uint32{tiocsti, tioclinux, tiocsetd} {
		b.refuse(SeccompRefusal{Syscall: "ioctl", Arg: 1, Value: v, Errno: ePERM})
	}
}
