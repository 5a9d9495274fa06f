package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// call is struct seccomp_data without the instruction pointer.
type call struct {
	nr, arch uint32
	args     [6]uint64
}

func (c call) word(offset uint32) uint32 {
	switch offset {
	case dataNumber:
		return c.nr
	case dataArch:
		return c.arch
	}
	v := c.args[(offset-dataArgs)/argBytes]
	if (offset-dataArgs)%argBytes != 0 {
		v >>= 32
	}
	return uint32(v)
}

// evaluate runs a program as the kernel does. Source: linux/filter.h; kernel/seccomp.c, seccomp_check_filter, for the
// instructions that there are.
func evaluate(program []unix.SockFilter, c call) uint32 {
	var a uint32
	for pc := 0; ; pc++ {
		i := program[pc]
		switch i.Code {
		case opLoad:
			a = c.word(i.K)
		case opAnd:
			a &= i.K
		case opAlways:
			pc += int(i.K)
		case opReturn:
			return i.K
		default:
			if compare(i, a) {
				pc += int(i.Jt)
			} else {
				pc += int(i.Jf)
			}
		}
	}
}

func compare(i unix.SockFilter, a uint32) bool {
	switch i.Code {
	case opEqual:
		return a == i.K
	case opGreat:
		return a > i.K
	case opGreatE:
		return a >= i.K
	case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
		return a&i.K != 0
	}
	panic(fmt.Sprintf("instruction %#x", i.Code))
}

// path is one way through a program, with what it assumes about arguments. What earlier paths have used up is left out,
// so of several paths the first whose conditions hold counts.
type path struct {
	conditions []string
	answer     uint32
}

// explain follows a program for one call with every value of its arguments, and returns the ways it can end.
func explain(program []unix.SockFilter, nr, arch uint32) []path {
	w := walker{program: program, call: call{nr: nr, arch: arch}}
	w.walk(0, word{}, nil, nil)
	return w.paths
}

// word is what the accumulator holds: a number, or half an argument after a mask.
type word struct {
	number uint32
	offset uint32 // of the argument's half; 0 is a number
	mask   uint32
}

func (w word) String() string {
	half := "low"
	if (w.offset-dataArgs)%argBytes != 0 {
		half = "high"
	}
	s := fmt.Sprintf("arg%d.%s", (w.offset-dataArgs)/argBytes, half)
	if w.mask != 0xffffffff {
		s += fmt.Sprintf("&%#x", w.mask)
	}
	return s
}

// assumption is a comparison and how it came out.
type assumption struct {
	word word
	code uint16
	k    uint32
	held bool
}

func (a assumption) String() string {
	sign := map[uint16][2]string{opEqual: {"!=", "=="}, opGreat: {"<=", ">"}, opGreatE: {"<", ">="}, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K: {"clear", "set"}}[a.code]
	i := 0
	if a.held {
		i = 1
	}
	return fmt.Sprintf("%s%s%#x", a.word, sign[i], a.k)
}

type walker struct {
	program []unix.SockFilter
	call    call
	paths   []path
}

func (w *walker) walk(pc int, acc word, known []assumption, text []string) {
	for ; ; pc++ {
		i := w.program[pc]
		switch i.Code {
		case opLoad:
			if acc = (word{offset: i.K, mask: 0xffffffff}); i.K < dataArgs {
				acc = word{number: w.call.word(i.K)}
			}
			continue
		case opAnd:
			acc.mask &= i.K
			acc.number &= i.K
			continue
		case opAlways:
			pc += int(i.K)
			continue
		case opReturn:
			w.paths = append(w.paths, path{text, i.K})
			return
		}
		if acc.offset == 0 {
			pc += jump(i, compare(i, acc.number))
			continue
		}
		for _, held := range []bool{true, false} {
			a := assumption{acc, i.Code, i.K, held}
			if !possible(known, a) {
				continue
			}
			next := text
			other := a
			if other.held = !held; held && possible(known, other) {
				next = append(slices.Clone(text), a.String())
			}
			w.walk(pc+jump(i, held)+1, acc, append(slices.Clone(known), a), next)
		}
		return
	}
}

func jump(i unix.SockFilter, held bool) int {
	if held {
		return int(i.Jt)
	}
	return int(i.Jf)
}

// possible reports whether an assumption can hold beside earlier ones about the same word: whether one of the values
// around all the constants satisfies them.
func possible(known []assumption, a assumption) bool {
	same := []assumption{a}
	for _, k := range known {
		if k.word == a.word {
			same = append(same, k)
		}
	}
	candidates := []uint32{0, 0xffffffff}
	for _, s := range same {
		candidates = append(candidates, s.k, s.k+1, s.k-1)
	}
	return slices.ContainsFunc(candidates, func(v uint32) bool {
		for _, s := range same {
			if compare(unix.SockFilter{Code: s.code, K: s.k}, v&s.word.mask) != s.held {
				return false
			}
		}
		return true
	})
}

// answerText spells SECCOMP_RET_ values.
func answerText(v uint32) string {
	data := v & unix.SECCOMP_RET_DATA
	switch v & unix.SECCOMP_RET_ACTION_FULL {
	case unix.SECCOMP_RET_ALLOW:
		return "allow"
	case unix.SECCOMP_RET_ERRNO:
		return unix.ErrnoName(unix.Errno(data))
	case unix.SECCOMP_RET_LOG:
		return "log"
	case unix.SECCOMP_RET_TRACE:
		return fmt.Sprintf("trace %d", data)
	case unix.SECCOMP_RET_TRAP:
		return "trap"
	case unix.SECCOMP_RET_USER_NOTIF:
		return "notify"
	case unix.SECCOMP_RET_KILL_THREAD:
		return "kill thread"
	case unix.SECCOMP_RET_KILL_PROCESS:
		return "kill process"
	}
	return fmt.Sprintf("%#x", v)
}

// policyText decodes a program to what it answers to each call of the native ABI, and to calls of others.
func policyText(program []unix.SockFilter, native abi) string {
	constant := map[string][]string{}
	var conditional strings.Builder
	const last = 480
	unnamed := 0
	for nr := range uint32(last) {
		paths := explain(program, nr, native.token)
		name, ok := native.name(nr)
		switch {
		case !ok && (len(paths) != 1 || answerText(paths[0].answer) != "ENOSYS"):
			return fmt.Sprintf("number %d without a name: %v", nr, paths)
		case !ok:
			unnamed++
		case len(paths) == 1:
			constant[answerText(paths[0].answer)] = append(constant[answerText(paths[0].answer)], name)
		default:
			writePaths(&conditional, name, paths)
		}
	}
	var b strings.Builder
	for _, a := range slices.Sorted(maps.Keys(constant)) {
		slices.Sort(constant[a])
		fmt.Fprintf(&b, "%s\n  %s\n", a, strings.Join(constant[a], "\n  "))
	}
	b.WriteString(conditional.String())
	fmt.Fprintf(&b, "%d numbers below %d without a name: ENOSYS\n", unnamed, last)
	for _, c := range []struct {
		name     string
		nr, arch uint32
	}{
		{"number 5000", 5000, native.token},
		{"number -1", 0xffffffff, native.token},
		{"x32 getpid", x32Bit + 39, unix.AUDIT_ARCH_X86_64},
		{"i386 getpid", 20, unix.AUDIT_ARCH_I386},
		{"arm getpid", 20, unix.AUDIT_ARCH_ARM},
	} {
		fmt.Fprintf(&b, "%s: %s\n", c.name, answerText(evaluate(program, call{nr: c.nr, arch: c.arch})))
	}
	return b.String()
}

func writePaths(b *strings.Builder, name string, paths []path) {
	fmt.Fprintf(b, "%s\n", name)
	for _, p := range paths {
		condition := strings.Join(p.conditions, " ")
		if condition == "" {
			condition = "otherwise"
		}
		fmt.Fprintf(b, "  %s: %s\n", condition, answerText(p.answer))
	}
}
