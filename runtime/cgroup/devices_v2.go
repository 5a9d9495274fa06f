package cgroup

import (
	"encoding/binary"
	"fmt"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"golang.org/x/sys/unix"
)

// setDevicesV2 attaches a device filter to the v2 cgroup at path. Filters of ancestors, and of systemd for the same unit,
// stay in force beside it: access needs the consent of all.
func setDevicesV2(path string, r *cgroups.Resources) error {
	if r.SkipDevices || len(r.Devices) == 0 {
		return nil
	}
	dir, err := unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open cgroup %s: %w", path, err)
	}
	defer unix.Close(dir)
	prog, err := loadDeviceProgram(deviceProgram(r.Devices))
	if err != nil {
		return fmt.Errorf("load device filter: %w", err)
	}
	defer unix.Close(prog) // the cgroup keeps the program
	if err := attachDeviceProgram(dir, prog); err != nil {
		return fmt.Errorf("attach device filter to %s: %w", path, err)
	}
	return nil
}

// bpfInsn is struct bpf_insn on a little-endian machine; both architectures of agentsafe are.
type bpfInsn struct {
	op       uint8
	dst, src uint8
	off      int16
	imm      int32
}

// Operation codes. Source: Linux Documentation/bpf/standardization/instruction-set.rst.
const (
	bpfLoadWord = 0x61 // dst = *(u32 *)(src + off)
	bpfMovReg   = 0xbf
	bpfMovImm   = 0xb7
	bpfAndImm   = 0x57
	bpfRshImm   = 0x77
	bpfJeqImm   = 0x15
	bpfJneImm   = 0x55
	bpfExit     = 0x95
)

// deviceProgram compiles canonical rules into a BPF_PROG_TYPE_CGROUP_DEVICE program: it returns 1 for "may" and 0 for
// EPERM. Its argument is struct bpf_cgroup_dev_ctx {u32 access << 16 | type, major, minor}.
//
// One exception of an allow-list has to permit the whole access (O_RDWR asks for read and write at once); one exception
// of a deny-list refuses if it names any part of it. That is how v1 judges too (Linux security/device_cgroup.c,
// match_exception and match_exception_partial).
func deviceProgram(rules []*devices.Rule) []bpfInsn {
	const ctx, kind, may, major, minor, tmp, result = 1, 2, 3, 4, 5, 6, 0
	allow := rules[0].Allow
	prog := []bpfInsn{
		{op: bpfLoadWord, dst: kind, src: ctx, off: 0},
		{op: bpfMovReg, dst: may, src: kind},
		{op: bpfAndImm, dst: kind, imm: 0xffff},
		{op: bpfRshImm, dst: may, imm: 16},
		{op: bpfLoadWord, dst: major, src: ctx, off: 4},
		{op: bpfLoadWord, dst: minor, src: ctx, off: 8},
	}
	for _, rule := range rules[1:] {
		bits, _ := parseAccess(string(rule.Permissions))
		kindImm := int32(unix.BPF_DEVCG_DEV_CHAR)
		if rule.Type == devices.BlockDevice {
			kindImm = unix.BPF_DEVCG_DEV_BLOCK
		}
		block := []bpfInsn{{op: bpfJneImm, dst: kind, imm: kindImm}}
		if rule.Major != devices.Wildcard {
			block = append(block, bpfInsn{op: bpfJneImm, dst: major, imm: int32(rule.Major)})
		}
		if rule.Minor != devices.Wildcard {
			block = append(block, bpfInsn{op: bpfJneImm, dst: minor, imm: int32(rule.Minor)})
		}
		block = append(block, bpfInsn{op: bpfMovReg, dst: tmp, src: may})
		if allow {
			block = append(block,
				bpfInsn{op: bpfAndImm, dst: tmp, imm: int32(bits)}, bpfInsn{op: bpfJeqImm, dst: tmp, imm: 0})
		} else {
			block = append(block,
				bpfInsn{op: bpfAndImm, dst: tmp, imm: int32(accessAll &^ bits)}, bpfInsn{op: bpfJneImm, dst: tmp, imm: 0})
		}
		block = append(block, bpfInsn{op: bpfMovImm, dst: result, imm: truth(!allow)}, bpfInsn{op: bpfExit})
		for i := range block {
			if block[i].op == bpfJneImm || block[i].op == bpfJeqImm {
				block[i].off = int16(len(block) - i - 1)
			}
		}
		prog = append(prog, block...)
	}
	return append(prog, bpfInsn{op: bpfMovImm, dst: result, imm: truth(allow)}, bpfInsn{op: bpfExit})
}

func truth(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

func encodeBPF(prog []bpfInsn) []byte {
	out := make([]byte, 0, 8*len(prog))
	for _, in := range prog {
		out = append(out, in.op, in.src<<4|in.dst)
		out = binary.LittleEndian.AppendUint16(out, uint16(in.off))
		out = binary.LittleEndian.AppendUint32(out, uint32(in.imm))
	}
	return out
}
