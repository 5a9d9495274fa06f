package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// optimizeTree makes libseccomp search the syscall number in a binary tree. With the agent filter a call costs 21 to 57
// instructions, against 16 to 351 in the order of libseccomp's level 1 (BenchmarkFilter).
const optimizeTree = 2

// compile returns the program of a filter: our own prefix, then libseccomp's.
func compile(f *profiles.SeccompFilter) ([]unix.SockFilter, error) {
	abis, err := filterABIs(f)
	if err != nil {
		return nil, err
	}
	native, err := newFilter(f, abis[:1])
	if err != nil {
		return nil, err
	}
	defer native.Release()
	if len(abis) > 1 {
		// libseccomp translates numbers from the native ABI to others by name, so numbers that it has no name for can
		// be given only to a filter of the native ABI.
		compat, err := newFilter(f, abis[1:])
		if err != nil {
			return nil, err
		}
		if err := native.Merge(compat); err != nil {
			return nil, fmt.Errorf("merge ABIs: %w", err)
		}
	}
	body, err := export(native)
	if err != nil {
		return nil, err
	}
	prefix, err := assemblePrefix(f, abis)
	if err != nil {
		return nil, err
	}
	program := append(prefix, body...)
	if len(program) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("%d instructions are more than the kernel's %d", len(program), unix.BPF_MAXINSNS)
	}
	return program, nil
}

// newFilter makes libseccomp's part for some ABIs.
func newFilter(f *profiles.SeccompFilter, abis []abi) (*libseccomp.ScmpFilter, error) {
	def, err := action(f.Default)
	if err != nil {
		return nil, fmt.Errorf("default: %w", err)
	}
	out, err := libseccomp.NewFilter(def)
	if err != nil {
		return nil, fmt.Errorf("new filter: %w", err)
	}
	if err := configure(out, f, abis); err != nil {
		out.Release()
		return nil, err
	}
	for i := range f.Rules {
		if err := addRule(out, &f.Rules[i], def, abis); err != nil {
			out.Release()
			return nil, fmt.Errorf("rules[%d]: %w", i, err)
		}
	}
	return out, nil
}

func configure(out *libseccomp.ScmpFilter, f *profiles.SeccompFilter, abis []abi) error {
	bad, err := action(f.BadArch)
	if err != nil {
		return fmt.Errorf("badArch: %w", err)
	}
	if err := out.SetBadArchAction(bad); err != nil {
		return fmt.Errorf("set action for other ABIs: %w", err)
	}
	if err := out.SetOptimize(optimizeTree); err != nil {
		return fmt.Errorf("set optimisation: %w", err)
	}
	native, err := libseccomp.GetNativeArch()
	if err != nil {
		return fmt.Errorf("native architecture: %w", err)
	}
	hasNative := false
	for _, a := range abis {
		hasNative = hasNative || a.arch == native
		if err := out.AddArch(a.arch); err != nil {
			return fmt.Errorf("add ABI %s: %w", a.arch, err)
		}
	}
	if !hasNative {
		if err := out.RemoveArch(native); err != nil {
			return fmt.Errorf("remove ABI %s: %w", native, err)
		}
	}
	return nil
}

// addRule adds a rule for each name that one of the ABIs has.
func addRule(out *libseccomp.ScmpFilter, r *profiles.SeccompRule, def libseccomp.ScmpAction, abis []abi) error {
	do, err := action(r.Action)
	if err != nil {
		return err
	}
	if do == def {
		return nil // libseccomp refuses a rule that says what the default says
	}
	conditions := make([]libseccomp.ScmpCondition, 0, len(r.Args))
	for _, a := range r.Args {
		c, err := condition(a)
		if err != nil {
			return err
		}
		conditions = append(conditions, c)
	}
	for _, name := range r.Names {
		nr, ok := ruleNumber(name, abis)
		if !ok {
			continue
		}
		if err := out.AddRuleConditional(libseccomp.ScmpSyscall(nr), do, conditions); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func action(a profiles.SeccompAction) (libseccomp.ScmpAction, error) {
	code := int16(a.Errno) //nolint:gosec // at most 4095, and the library takes the bits
	switch a.Do {
	case profiles.DoAllow:
		return libseccomp.ActAllow, nil
	case profiles.DoLog:
		return libseccomp.ActLog, nil
	case profiles.DoTrace:
		return libseccomp.ActTrace.SetReturnCode(code), nil
	case profiles.DoNotify:
		return libseccomp.ActNotify, nil
	case profiles.DoErrno:
		return libseccomp.ActErrno.SetReturnCode(code), nil
	case profiles.DoTrap:
		return libseccomp.ActTrap, nil
	case profiles.DoKillThread:
		return libseccomp.ActKillThread, nil
	case profiles.DoKillProcess:
		return libseccomp.ActKillProcess, nil
	}
	return 0, fmt.Errorf("action %q is unknown", a.Do)
}

func condition(a profiles.SeccompArg) (libseccomp.ScmpCondition, error) {
	values := []uint64{a.Value}
	var op libseccomp.ScmpCompareOp
	switch a.Op {
	case profiles.OpEqual:
		op = libseccomp.CompareEqual
	case profiles.OpNotEqual:
		op = libseccomp.CompareNotEqual
	case profiles.OpLess:
		op = libseccomp.CompareLess
	case profiles.OpLessEqual:
		op = libseccomp.CompareLessOrEqual
	case profiles.OpGreater:
		op = libseccomp.CompareGreater
	case profiles.OpGreaterEqual:
		op = libseccomp.CompareGreaterEqual
	case profiles.OpMasked:
		op, values = libseccomp.CompareMaskedEqual, []uint64{a.Mask, a.Value}
	default:
		return libseccomp.ScmpCondition{}, fmt.Errorf("comparison %q is unknown", a.Op)
	}
	return libseccomp.MakeCondition(uint(a.Index), op, values...)
}

// export reads libseccomp's program through a pipe: version 2.5.4 can't hand it over in memory.
func export(f *libseccomp.ScmpFilter) ([]unix.SockFilter, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	defer r.Close()
	exported := make(chan error, 1)
	go func() {
		err := f.ExportBPF(w)
		exported <- errors.Join(err, w.Close())
	}()
	data, err := io.ReadAll(r)
	if err := errors.Join(<-exported, err); err != nil {
		return nil, fmt.Errorf("export program: %w", err)
	}
	return decode(data)
}

const instructionBytes = 8

func decode(data []byte) ([]unix.SockFilter, error) {
	if len(data) == 0 || len(data)%instructionBytes != 0 {
		return nil, fmt.Errorf("program of %d bytes is not whole", len(data))
	}
	out := make([]unix.SockFilter, len(data)/instructionBytes)
	for i := range out {
		b := data[i*instructionBytes:]
		out[i] = unix.SockFilter{Code: binary.NativeEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.NativeEndian.Uint32(b[4:])}
	}
	return out, nil
}

func encode(program []unix.SockFilter) []byte {
	out := make([]byte, 0, len(program)*instructionBytes)
	for _, i := range program {
		out = binary.NativeEndian.AppendUint16(out, i.Code)
		out = append(out, i.Jt, i.Jf)
		out = binary.NativeEndian.AppendUint32(out, i.K)
	}
	return out
}
