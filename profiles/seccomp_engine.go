package profiles

import (
	"errors"
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// maxFilterNames bounds what a hostile config.json makes the compiler do; Docker's profile has 400.
const maxFilterNames = 16384

// FilterFromOCI translates the seccomp section of a spec. goarch is the native architecture; compat says whether the
// further ABIs that the section lists are kept. It returns an error that names the field of config.json.
//
// As in runc: a rule with several comparisons of one argument is several rules (runc#2735), names that the kernel's
// architecture does not have are skipped, and numbers newer than all that the section names answer ENOSYS where its
// default refuses (runc#2151). Unlike runc: comparisons of one argument that are all "not equal", which as several rules
// would match everything, mean what they say (containerd#13327).
func FilterFromOCI(in *specs.LinuxSeccomp, goarch string, compat bool) (*SeccompFilter, error) {
	out := &SeccompFilter{Name: "engine", Arch: goarch, BadArch: SeccompAction{Do: DoErrno, Errno: eNOSYS}}
	var err error
	if out.Default, err = seccompAction(in.DefaultAction, in.DefaultErrnoRet); err != nil {
		return nil, fmt.Errorf("linux.seccomp.defaultAction: %w", err)
	}
	switch out.Default.Do {
	case DoAllow, DoLog, DoTrace: // tracers emulate; runc leaves these alone too
	default:
		out.Unknown = &SeccompAction{Do: DoErrno, Errno: eNOSYS}
	}
	native := nativeArch(goarch)
	if native == "" {
		return nil, fmt.Errorf("linux.seccomp.architectures: no filters for %q yet", goarch)
	}
	for i, a := range in.Architectures {
		if !validArch(a) {
			return nil, fmt.Errorf("linux.seccomp.architectures[%d]: %q is not an architecture", i, a)
		}
		if compat && a != native && !slices.Contains(out.Compat, string(a)) {
			out.Compat = append(out.Compat, string(a))
		}
	}
	if out.Flags, err = seccompFlags(in.Flags); err != nil {
		return nil, err
	}
	total := 0
	out.Rules = make([]SeccompRule, 0, len(in.Syscalls))
	for i := range in.Syscalls {
		if total += len(in.Syscalls[i].Names); total > maxFilterNames {
			return nil, fmt.Errorf("linux.seccomp.syscalls: more than %d names", maxFilterNames)
		}
		rules, err := seccompRules(&in.Syscalls[i])
		if err != nil {
			return nil, fmt.Errorf("linux.seccomp.syscalls[%d]%w", i, err)
		}
		out.Rules = append(out.Rules, rules...)
	}
	return out, nil
}

func nativeArch(goarch string) specs.Arch {
	switch goarch {
	case "amd64":
		return specs.ArchX86_64
	case "arm64":
		return specs.ArchAARCH64
	}
	return ""
}

// SeccompArchs lists the architectures that linux.seccomp.architectures may name: those of other machines have no
// meaning on this one, and are no error.
func SeccompArchs() []specs.Arch {
	return []specs.Arch{
		specs.ArchX86, specs.ArchX86_64, specs.ArchX32, specs.ArchARM, specs.ArchAARCH64, specs.ArchMIPS,
		specs.ArchMIPS64, specs.ArchMIPS64N32, specs.ArchMIPSEL, specs.ArchMIPSEL64, specs.ArchMIPSEL64N32,
		specs.ArchPPC, specs.ArchPPC64, specs.ArchPPC64LE, specs.ArchS390, specs.ArchS390X, specs.ArchPARISC,
		specs.ArchPARISC64, specs.ArchRISCV64, specs.ArchLOONGARCH64, specs.ArchM68K, specs.ArchSH, specs.ArchSHEB,
	}
}

func validArch(a specs.Arch) bool { return slices.Contains(SeccompArchs(), a) }

// SeccompFlags lists the flags that linux.seccomp.flags may name, with their bits for seccomp(2). TSYNC has no meaning for
// a process with one thread, and is not set.
func SeccompFlags() map[specs.LinuxSeccompFlag]uint64 {
	return map[specs.LinuxSeccompFlag]uint64{
		specs.LinuxSeccompFlagLog: 1 << 1, specs.LinuxSeccompFlagSpecAllow: 1 << 2,
		specs.LinuxSeccompFlagWaitKillableRecv: 1 << 5, "SECCOMP_FILTER_FLAG_TSYNC": 0,
	}
}

func seccompAction(a specs.LinuxSeccompAction, errno *uint) (SeccompAction, error) {
	out := SeccompAction{}
	switch a {
	case specs.ActAllow:
		out.Do = DoAllow
	case specs.ActLog:
		out.Do = DoLog
	case specs.ActNotify:
		out.Do = DoNotify
	case specs.ActTrap:
		out.Do = DoTrap
	case specs.ActKill, specs.ActKillThread:
		out.Do = DoKillThread
	case specs.ActKillProcess:
		out.Do = DoKillProcess
	case specs.ActTrace:
		out = SeccompAction{Do: DoTrace, Errno: ePERM}
	case specs.ActErrno:
		out = SeccompAction{Do: DoErrno, Errno: ePERM}
	default:
		return out, fmt.Errorf("%q is not an action", a)
	}
	if errno == nil {
		return out, nil
	}
	const maxErrno = 4095
	switch {
	case out.Do != DoErrno && out.Do != DoTrace:
		// runtime-spec 1.3.0, config-linux.md "Seccomp": "If the action doesn't support errnoRet [...] the runtime
		// MUST return an error".
		return out, fmt.Errorf("%s takes no errnoRet", a)
	case *errno > maxErrno:
		return out, fmt.Errorf("errnoRet %d is above %d", *errno, maxErrno)
	}
	out.Errno = uint16(*errno) //nolint:gosec // checked
	return out, nil
}

// seccompFlags translates to the bits of seccomp(2).
func seccompFlags(in []specs.LinuxSeccompFlag) (uint64, error) {
	var out uint64
	for i, f := range in {
		bit, known := SeccompFlags()[f]
		if !known {
			return 0, fmt.Errorf("linux.seccomp.flags[%d]: %q is not a flag", i, f)
		}
		out |= bit
	}
	return out, nil
}

func seccompRules(in *specs.LinuxSyscall) ([]SeccompRule, error) {
	if len(in.Names) == 0 {
		return nil, errors.New(".names: is empty")
	}
	action, err := seccompAction(in.Action, in.ErrnoRet)
	if err != nil {
		return nil, fmt.Errorf(".action: %w", err)
	}
	names := in.Names
	if slices.ContainsFunc(names, func(n string) bool { return !validSyscallName(n) }) {
		names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !validSyscallName(n) })
	}
	if len(names) == 0 {
		return nil, nil
	}
	args := make([]SeccompArg, 0, len(in.Args))
	repeated := false
	for i := range in.Args {
		a, err := seccompArg(&in.Args[i])
		if err != nil {
			return nil, fmt.Errorf(".args[%d]%w", i, err)
		}
		repeated = repeated || slices.ContainsFunc(args, func(b SeccompArg) bool { return a.Index == b.Index })
		args = append(args, a)
	}
	if !repeated {
		if len(args) == 0 {
			args = nil
		}
		return []SeccompRule{{Names: names, Action: action, Args: args}}, nil
	}
	if args, err = ranges(args); err != nil {
		return nil, fmt.Errorf(".args%w", err)
	}
	out := make([]SeccompRule, 0, len(args))
	for _, a := range args {
		out = append(out, SeccompRule{Names: names, Action: action, Args: []SeccompArg{a}})
	}
	return out, nil
}

func seccompArg(in *specs.LinuxSeccompArg) (SeccompArg, error) {
	out := SeccompArg{Value: in.Value}
	if in.Index > 5 {
		return out, fmt.Errorf(".index: %d: a syscall has six arguments", in.Index)
	}
	out.Index = uint8(in.Index)
	switch in.Op {
	case specs.OpEqualTo:
		out.Op = OpEqual
	case specs.OpNotEqual:
		out.Op = OpNotEqual
	case specs.OpLessThan:
		out.Op = OpLess
	case specs.OpLessEqual:
		out.Op = OpLessEqual
	case specs.OpGreaterThan:
		out.Op = OpGreater
	case specs.OpGreaterEqual:
		out.Op = OpGreaterEqual
	case specs.OpMaskedEqual:
		out.Op, out.Mask, out.Value = OpMasked, in.Value, in.ValueTwo
	default:
		return out, fmt.Errorf(".op: %q is not a comparison", in.Op)
	}
	return out, nil
}

// maxGap bounds how many single values stand in for a gap between two excluded ones.
const maxGap = 256

// ranges rewrites comparisons that repeat an argument, each of which becomes a rule of its own. If they are all "not
// equal" on one argument, that would match every value; what is meant is everything between the values, and libseccomp
// takes one comparison for an argument, so the gaps are spelt out.
func ranges(args []SeccompArg) ([]SeccompArg, error) {
	var values []uint64
	for _, a := range args {
		if a.Op != OpNotEqual || a.Index != args[0].Index {
			return args, nil
		}
		values = append(values, a.Value)
	}
	slices.Sort(values)
	values = slices.Compact(values)
	index := args[0].Index
	var out []SeccompArg
	if values[0] > 0 {
		out = append(out, SeccompArg{Index: index, Op: OpLess, Value: values[0]})
	}
	for i := 1; i < len(values); i++ {
		if values[i]-values[i-1] > maxGap || len(out) > maxGap {
			return nil, fmt.Errorf(": not equal to %d and not equal to %d can't be compiled together", values[i-1], values[i])
		}
		for v := values[i-1] + 1; v < values[i]; v++ {
			out = append(out, SeccompArg{Index: index, Op: OpEqual, Value: v})
		}
	}
	if last := values[len(values)-1]; last < 1<<64-1 {
		out = append(out, SeccompArg{Index: index, Op: OpGreater, Value: last})
	}
	return out, nil
}
