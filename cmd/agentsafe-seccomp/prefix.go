package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// Offsets in struct seccomp_data. Source: linux/seccomp.h. Both architectures are little-endian, so the lower half of
// an argument comes first.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
	argBytes   = 8
)

const (
	opLoad   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opEqual  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opGreat  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	opGreatE = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opAlways = unix.BPF_JMP | unix.BPF_JA
	opAnd    = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opReturn = unix.BPF_RET | unix.BPF_K
)

// assemblePrefix makes what is judged before libseccomp's program: for each ABI the refusals of 32-bit arguments and
// the unknown numbers. It falls through to whatever follows. The instructions are of the kind that the kernel can
// evaluate in advance, so a call that is always allowed is still answered from its bitmap (Linux 5.11, f9d480b6ffbe
// "seccomp/cache: Lookup syscall allowlist bitmap for fast path").
func assemblePrefix(f *profiles.SeccompFilter, abis []abi) ([]unix.SockFilter, error) {
	var out []unix.SockFilter
	for _, a := range abis {
		block, err := abiBlock(f, a)
		if err != nil {
			return nil, err
		}
		if len(block) == 0 {
			continue
		}
		// A far jump, since a conditional one reaches 255 instructions.
		out = append(out,
			unix.SockFilter{Code: opLoad, K: dataArch},
			unix.SockFilter{Code: opEqual, Jt: 1, K: a.token},
			unix.SockFilter{Code: opAlways, K: uint32(len(block))}) //nolint:gosec // short
		out = append(out, block...)
	}
	return out, nil
}

// abiBlock makes the part of one ABI; it begins by loading the number.
func abiBlock(f *profiles.SeccompFilter, a abi) ([]unix.SockFilter, error) {
	var out []unix.SockFilter
	for _, name := range refusedNames(f) {
		nr, ok := a.number(name)
		if !ok {
			continue
		}
		group, err := refusalGroup(f, name)
		if err != nil {
			return nil, err
		}
		out = append(out, unix.SockFilter{Code: opEqual, Jt: 1, K: nr}, unix.SockFilter{Code: opAlways, K: uint32(len(group))}) //nolint:gosec // short
		out = append(out, group...)
	}
	if f.Unknown != nil {
		block, err := unknownBlock(f, a)
		if err != nil {
			return nil, err
		}
		out = append(out, block...)
	}
	if len(out) == 0 {
		return nil, nil
	}
	return append([]unix.SockFilter{{Code: opLoad, K: dataNumber}}, out...), nil
}

// refusedNames are the names in f.Refuse, each once.
func refusedNames(f *profiles.SeccompFilter) []string {
	var out []string
	seen := map[string]bool{}
	for _, r := range f.Refuse {
		if !seen[r.Syscall] {
			seen[r.Syscall] = true
			out = append(out, r.Syscall)
		}
	}
	return out
}

// refusalGroup compares arguments of one call; at its end the number is loaded again.
func refusalGroup(f *profiles.SeccompFilter, name string) ([]unix.SockFilter, error) {
	var out []unix.SockFilter
	for _, r := range f.Refuse {
		if r.Syscall != name {
			continue
		}
		if r.Arg > 5 || r.Errno == 0 || r.Errno > 4095 {
			return nil, fmt.Errorf("refusal of %s: argument %d, errno %d", name, r.Arg, r.Errno)
		}
		if and := r.And; and != nil {
			if and.Arg > 5 {
				return nil, fmt.Errorf("refusal of %s: argument %d", name, and.Arg)
			}
			rest := uint8(3) // what follows for the other argument
			if r.Mask != 0 {
				rest++
			}
			out = append(out,
				unix.SockFilter{Code: opLoad, K: dataArgs + argBytes*uint32(and.Arg)},
				unix.SockFilter{Code: opEqual, Jf: rest, K: and.Value})
		}
		out = append(out, unix.SockFilter{Code: opLoad, K: dataArgs + argBytes*uint32(r.Arg)})
		if r.Mask != 0 {
			out = append(out, unix.SockFilter{Code: opAnd, K: r.Mask})
		}
		out = append(out,
			unix.SockFilter{Code: opEqual, Jf: 1, K: r.Value},
			unix.SockFilter{Code: opReturn, K: unix.SECCOMP_RET_ERRNO | uint32(r.Errno)})
	}
	return append(out, unix.SockFilter{Code: opLoad, K: dataNumber}), nil
}

// unknownBlock answers numbers above the highest that the filter names, and on the native ABI those below that have no
// name.
func unknownBlock(f *profiles.SeccompFilter, a abi) ([]unix.SockFilter, error) {
	if f.Unknown.Do != profiles.DoErrno || f.Unknown.Errno > 4095 {
		return nil, errors.New("unknown: want an errno")
	}
	newest, ok := newestNumber(f, a)
	if !ok {
		return nil, nil
	}
	answer := unix.SockFilter{Code: opReturn, K: unix.SECCOMP_RET_ERRNO | uint32(f.Unknown.Errno)}
	var out []unix.SockFilter
	if a.native {
		for _, g := range gaps(a, newest) {
			out = append(out,
				unix.SockFilter{Code: opGreatE, Jf: 2, K: g[0]},
				unix.SockFilter{Code: opGreat, Jt: 1, K: g[1]}, answer)
		}
	}
	switch {
	case a.token == unix.AUDIT_ARCH_X86_64 && a.offset == 0:
		// x32's numbers are no unknown ones of amd64; what follows knows whether that ABI is allowed.
		return append(out,
			unix.SockFilter{Code: opGreatE, Jt: 2, K: x32Bit},
			unix.SockFilter{Code: opGreat, Jf: 1, K: newest}, answer), nil
	case a.token == unix.AUDIT_ARCH_X86_64:
		// -1 is a call of amd64 that a tracer takes back.
		return append(out,
			unix.SockFilter{Code: opEqual, Jt: 2, K: 0xffffffff},
			unix.SockFilter{Code: opGreat, Jf: 1, K: newest}, answer), nil
	}
	return append(out, unix.SockFilter{Code: opGreat, Jf: 1, K: newest}, answer), nil
}

func newestNumber(f *profiles.SeccompFilter, a abi) (newest uint32, ok bool) {
	for i := range f.Rules {
		for _, name := range f.Rules[i].Names {
			if nr, known := a.number(name); known {
				newest, ok = max(newest, nr), true
			}
		}
	}
	return newest, ok
}

// gaps are ranges, both ends included, of numbers without a name.
func gaps(a abi, newest uint32) [][2]uint32 {
	var out [][2]uint32
	for nr := uint32(0); nr <= newest; nr++ {
		if _, known := a.name(nr); known {
			continue
		}
		if n := len(out); n > 0 && out[n-1][1] == nr-1 {
			out[n-1][1] = nr
		} else {
			out = append(out, [2]uint32{nr, nr})
		}
	}
	return out
}
