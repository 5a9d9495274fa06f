package profiles

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// CompilerVersion is part of every filter's key: it changes with whatever changes the BPF of the same description.
const CompilerVersion = 1

// SeccompFilter describes one filter, independently of numbers and BPF: plain data for cmd/agentsafe-seccomp, which
// compiles it. A call is judged in this order: the ABI (Compat, BadArch), Refuse, Unknown, Rules, Default.
type SeccompFilter struct {
	// Name is for people: "engine" or "agent".
	Name string `json:"name"`
	// Arch is the native architecture as GOARCH has it.
	Arch string `json:"arch"`
	// Compat are further ABIs that the rules hold for, as SCMP_ARCH_ names; calls through any other get BadArch.
	Compat  []string      `json:"compat,omitempty"`
	BadArch SeccompAction `json:"badArch"`
	// Unknown is for numbers above all that the filter names and, on the native ABI, for numbers without a name.
	Unknown *SeccompAction   `json:"unknown,omitempty"`
	Refuse  []SeccompRefusal `json:"refuse,omitempty"`
	Rules   []SeccompRule    `json:"rules,omitempty"`
	Default SeccompAction    `json:"default"`
	// Flags are SECCOMP_FILTER_FLAG_ bits for seccomp(2).
	Flags uint64 `json:"flags,omitempty"`
}

// seccompFlagLog is SECCOMP_FILTER_FLAG_LOG: the kernel's audit log gets what the filters refuse.
const seccompFlagLog = 1 << 1

// SeccompRefusal answers a call of the native ABI with an errno if an argument that the kernel takes as a 32-bit number
// has the value. It looks at the lower half only: a rule on all 64 bits is walked around by setting a bit that the
// kernel ignores (CVE-2019-7303, TIOCSTI in snapd; TestAttack_CVE_2019_7303_HighBits).
type SeccompRefusal struct {
	Syscall string `json:"syscall"`
	Arg     uint8  `json:"arg"`
	// Mask is applied before the comparison; 0 is all bits.
	Mask  uint32 `json:"mask,omitempty"`
	Value uint32 `json:"value"`
	// And is what another argument must be as well; nil asks for nothing more.
	And   *SeccompValue `json:"and,omitempty"`
	Errno uint16        `json:"errno"`
}

// SeccompValue is the lower half of an argument.
type SeccompValue struct {
	Arg   uint8  `json:"arg"`
	Value uint32 `json:"value"`
}

// SeccompRule gives calls an action. Rules that can match the same call must not differ in their action, but for the
// rules of an engine, of which libseccomp decides as it does for every runtime.
type SeccompRule struct {
	// Names that the architecture does not have are skipped.
	Names  []string      `json:"names"`
	Action SeccompAction `json:"action"`
	// Args must all hold, at most one for each argument (a limit of libseccomp).
	Args []SeccompArg `json:"args,omitempty"`
}

// SeccompArg compares an argument, all 64 bits, without sign.
type SeccompArg struct {
	Index uint8     `json:"index"`
	Op    SeccompOp `json:"op"`
	Value uint64    `json:"value"`
	// Mask is for OpMasked only.
	Mask uint64 `json:"mask,omitempty"`
}

// SeccompOp is a comparison.
type SeccompOp string

// The comparisons. OpMasked is argument & Mask == Value.
const (
	OpEqual        SeccompOp = "=="
	OpNotEqual     SeccompOp = "!="
	OpLess         SeccompOp = "<"
	OpLessEqual    SeccompOp = "<="
	OpGreater      SeccompOp = ">"
	OpGreaterEqual SeccompOp = ">="
	OpMasked       SeccompOp = "&"
)

// SeccompDo is what happens to a call.
type SeccompDo string

// What can happen to a call, strictest last to first as the kernel ranks it.
const (
	DoAllow       SeccompDo = "allow"
	DoLog         SeccompDo = "log"
	DoTrace       SeccompDo = "trace"
	DoNotify      SeccompDo = "notify"
	DoErrno       SeccompDo = "errno"
	DoTrap        SeccompDo = "trap"
	DoKillThread  SeccompDo = "kill-thread"
	DoKillProcess SeccompDo = "kill-process"
)

// SeccompAction is what happens to a call, with the errno of DoErrno or the message of DoTrace.
type SeccompAction struct {
	Do    SeccompDo `json:"do"`
	Errno uint16    `json:"errno,omitempty"`
}

func (a SeccompAction) String() string {
	if a.Do == DoErrno || a.Do == DoTrace {
		return string(a.Do) + " " + errnoName(a.Errno)
	}
	return string(a.Do)
}

// Key names the compiled form: the sha256, in hex, of everything that decides about the BPF, and of CompilerVersion.
func (f *SeccompFilter) Key() string {
	b := make([]byte, 0, 16<<10)
	str := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	num := func(v uint64) { b = binary.AppendUvarint(b, v) }
	act := func(a SeccompAction) { str(string(a.Do)); num(uint64(a.Errno)) }
	num(CompilerVersion)
	str(f.Arch)
	num(uint64(len(f.Compat)))
	for _, c := range f.Compat {
		str(c)
	}
	act(f.BadArch)
	if f.Unknown != nil {
		act(*f.Unknown)
	} else {
		act(SeccompAction{})
	}
	act(f.Default)
	num(uint64(len(f.Refuse)))
	for _, r := range f.Refuse {
		str(r.Syscall)
		num(uint64(r.Arg))
		num(uint64(r.Mask))
		num(uint64(r.Value))
		num(uint64(r.Errno))
		if r.And != nil {
			num(uint64(r.And.Arg) + 1)
			num(uint64(r.And.Value))
		} else {
			num(0)
		}
	}
	num(uint64(len(f.Rules)))
	for i := range f.Rules {
		r := &f.Rules[i]
		act(r.Action)
		num(uint64(len(r.Args)))
		for _, a := range r.Args {
			num(uint64(a.Index))
			str(string(a.Op))
			num(a.Value)
			num(a.Mask)
		}
		num(uint64(len(r.Names)))
		for _, n := range r.Names {
			str(n)
		}
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// allows reports whether the filter lets a call pass whatever its arguments are.
func (f *SeccompFilter) allows(name string) bool {
	for i := range f.Rules {
		if slices.Contains(f.Rules[i].Names, name) {
			return f.Rules[i].Action.Do == DoAllow && len(f.Rules[i].Args) == 0
		}
	}
	return f.Default.Do == DoAllow
}

// Notifies says whether a process of the host's may be asked about a system call; with "" about any.
func (f *SeccompFilter) Notifies(name string) bool {
	judged := false // whatever its arguments are
	for i := range f.Rules {
		r := &f.Rules[i]
		if name != "" && !slices.Contains(r.Names, name) {
			continue
		}
		if r.Action.Do == DoNotify {
			return true
		}
		judged = judged || name != "" && len(r.Args) == 0
	}
	return f.Default.Do == DoNotify && !judged
}

// String lists the filter for people, in the order in which it judges.
func (f *SeccompFilter) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "filter %s, %s", f.Name, f.Arch)
	for _, c := range f.Compat {
		fmt.Fprintf(&b, " + %s", c)
	}
	fmt.Fprintf(&b, "\n  other ABIs: %s\n", f.BadArch)
	for _, r := range f.Refuse {
		fmt.Fprintf(&b, "  %s: errno %s if 32-bit arg%d", r.Syscall, errnoName(r.Errno), r.Arg)
		if r.Mask != 0 {
			fmt.Fprintf(&b, " & %#x", r.Mask)
		}
		fmt.Fprintf(&b, " == %#x", r.Value)
		if r.And != nil {
			fmt.Fprintf(&b, " and 32-bit arg%d == %#x", r.And.Arg, r.And.Value)
		}
		b.WriteString("\n")
	}
	if f.Unknown != nil {
		fmt.Fprintf(&b, "  unknown: %s\n", f.Unknown)
	}
	for i := range f.Rules {
		f.Rules[i].text(&b)
	}
	fmt.Fprintf(&b, "  default: %s\n", f.Default)
	return b.String()
}

func (r *SeccompRule) text(b *strings.Builder) {
	fmt.Fprintf(b, "  %s", r.Action)
	for i, a := range r.Args {
		word := "if"
		if i > 0 {
			word = "and"
		}
		if a.Op == OpMasked {
			fmt.Fprintf(b, " %s arg%d & %#x == %#x", word, a.Index, a.Mask, a.Value)
		} else {
			fmt.Fprintf(b, " %s arg%d %s %#x", word, a.Index, a.Op, a.Value)
		}
	}
	b.WriteString(":")
	width := 100
	for _, n := range slices.Sorted(slices.Values(r.Names)) {
		if width+1+len(n) > 100 && len(r.Names) > 1 {
			b.WriteString("\n   ")
			width = 3
		}
		b.WriteString(" " + n)
		width += 1 + len(n)
	}
	b.WriteString("\n")
}

// errnoName spells the errnos that the built-in filters use.
func errnoName(e uint16) string {
	switch e {
	case ePERM:
		return "EPERM"
	case eNOSYS:
		return "ENOSYS"
	case ePROTONOSUPPORT:
		return "EPROTONOSUPPORT"
	case eSOCKTNOSUPPORT:
		return "ESOCKTNOSUPPORT"
	case eOPNOTSUPP:
		return "EOPNOTSUPP"
	case eAFNOSUPPORT:
		return "EAFNOSUPPORT"
	}
	return fmt.Sprintf("%d", e)
}

// Errnos of the generic table, which amd64 and arm64 share. Source: asm-generic/errno.h.
const (
	ePERM           = 1
	eNOSYS          = 38
	ePROTONOSUPPORT = 93
	eSOCKTNOSUPPORT = 94
	eOPNOTSUPP      = 95
	eAFNOSUPPORT    = 97
)

// validSyscallName keeps what can't be a name away from the compiler.
func validSyscallName(n string) bool {
	if n == "" || len(n) > 64 {
		return false
	}
	for i := range len(n) {
		c := n[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
