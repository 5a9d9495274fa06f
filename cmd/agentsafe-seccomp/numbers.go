package main

import (
	"fmt"
	"runtime"

	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// abi is one of a filter's, the native one first.
type abi struct {
	arch   libseccomp.ScmpArch
	token  uint32 // AUDIT_ARCH_ value in seccomp_data
	offset uint32 // added to every number (x32)
	native bool
}

// x32Bit marks a call of x32, which has the token of amd64. Source: asm/unistd.h, __X32_SYSCALL_BIT.
const x32Bit = 0x40000000

func filterABIs(f *profiles.SeccompFilter) ([]abi, error) {
	if f.Arch != runtime.GOARCH {
		return nil, fmt.Errorf("architecture %q: this compiler is for %s", f.Arch, runtime.GOARCH)
	}
	out := make([]abi, 0, 1+len(f.Compat))
	for _, name := range append([]string{nativeName()}, f.Compat...) {
		a, ok := lookupABI(name)
		if !ok {
			return nil, fmt.Errorf("architecture %q is not supported", name)
		}
		a.native = len(out) == 0
		out = append(out, a)
	}
	return out, nil
}

func nativeName() string {
	if runtime.GOARCH == "arm64" {
		return "SCMP_ARCH_AARCH64"
	}
	return "SCMP_ARCH_X86_64"
}

func lookupABI(name string) (abi, bool) {
	switch name {
	case "SCMP_ARCH_X86_64":
		return abi{arch: libseccomp.ArchAMD64, token: unix.AUDIT_ARCH_X86_64}, true
	case "SCMP_ARCH_X86":
		return abi{arch: libseccomp.ArchX86, token: unix.AUDIT_ARCH_I386}, true
	case "SCMP_ARCH_X32":
		return abi{arch: libseccomp.ArchX32, token: unix.AUDIT_ARCH_X86_64, offset: x32Bit}, true
	case "SCMP_ARCH_AARCH64":
		return abi{arch: libseccomp.ArchARM64, token: unix.AUDIT_ARCH_AARCH64}, true
	case "SCMP_ARCH_ARM":
		return abi{arch: libseccomp.ArchARM, token: unix.AUDIT_ARCH_ARM}, true
	}
	return abi{}, false
}

// number returns a call's number in an ABI, with its offset.
func (a abi) number(name string) (uint32, bool) {
	if nr, err := libseccomp.GetSyscallFromNameByArch(name, a.arch); err == nil && nr >= 0 {
		return uint32(nr) | a.offset, true
	}
	if a.native {
		for _, s := range newerSyscalls() {
			if s.name == name {
				return s.number, true
			}
		}
	}
	return 0, false
}

// name returns what a number of the native ABI is called.
func (a abi) name(nr uint32) (string, bool) {
	if name, err := libseccomp.ScmpSyscall(nr).GetNameByArch(a.arch); err == nil { //nolint:gosec // small
		return name, true
	}
	for _, s := range newerSyscalls() {
		if s.number == nr {
			return s.name, true
		}
	}
	return "", false
}

// ruleNumber returns what libseccomp takes for a rule that holds for some ABIs: the number in its own native ABI, or
// one of its placeholders for a call that only others have.
func ruleNumber(name string, abis []abi) (int, bool) {
	found := false
	for _, a := range abis {
		_, ok := a.number(name)
		found = found || ok
	}
	if !found {
		return 0, false
	}
	if nr, err := libseccomp.GetSyscallFromName(name); err == nil {
		return int(nr), true
	}
	nr, ok := abis[0].number(name)
	return int(nr), ok && abis[0].native
}

type syscallNumber struct {
	name   string
	number uint32
}

// newerSyscalls are those that libseccomp 2.5.4 has no names for. Numbers from 424 on are the same in every ABI but
// alpha's. Source: golang.org/x/sys/unix of Linux 7.0; Linux scripts/syscall.tbl.
func newerSyscalls() []syscallNumber {
	out := []syscallNumber{
		{"cachestat", unix.SYS_CACHESTAT},
		{"fchmodat2", unix.SYS_FCHMODAT2},
		{"map_shadow_stack", unix.SYS_MAP_SHADOW_STACK},
		{"futex_wake", unix.SYS_FUTEX_WAKE},
		{"futex_wait", unix.SYS_FUTEX_WAIT},
		{"futex_requeue", unix.SYS_FUTEX_REQUEUE},
		{"statmount", unix.SYS_STATMOUNT},
		{"listmount", unix.SYS_LISTMOUNT},
		{"lsm_get_self_attr", unix.SYS_LSM_GET_SELF_ATTR},
		{"lsm_set_self_attr", unix.SYS_LSM_SET_SELF_ATTR},
		{"lsm_list_modules", unix.SYS_LSM_LIST_MODULES},
		{"mseal", unix.SYS_MSEAL},
		{"setxattrat", unix.SYS_SETXATTRAT},
		{"getxattrat", unix.SYS_GETXATTRAT},
		{"listxattrat", unix.SYS_LISTXATTRAT},
		{"removexattrat", unix.SYS_REMOVEXATTRAT},
		{"open_tree_attr", unix.SYS_OPEN_TREE_ATTR},
		{"file_getattr", unix.SYS_FILE_GETATTR},
		{"file_setattr", unix.SYS_FILE_SETATTR},
		{"listns", unix.SYS_LISTNS},
		{"rseq_slice_yield", unix.SYS_RSEQ_SLICE_YIELD},
	}
	if runtime.GOARCH == "amd64" {
		out = append(out, syscallNumber{"uretprobe", 335}, syscallNumber{"uprobe", 336})
	}
	return out
}
