package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

var update = flag.Bool("update", false, "rewrite golden files")

// engineSpec reads a spec as an engine wrote it.
func engineSpec(tb testing.TB, name string) *specs.Spec {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("../../profiles/testdata", name+".json"))
	if err != nil {
		tb.Fatal(err)
	}
	var s specs.Spec
	if err := json.Unmarshal(data, &s); err != nil {
		tb.Fatal(err)
	}
	return &s
}

// filters returns the filters of a plan: the engine's, and the profile's.
func filters(tb testing.TB, spec string, change func(*profiles.Profile)) []profiles.SeccompFilter {
	tb.Helper()
	p, err := profiles.Builtin(profiles.NameAgent)
	if err != nil {
		tb.Fatal(err)
	}
	if change != nil {
		change(p)
	}
	s := engineSpec(tb, spec)
	host := profiles.HostFacts{Arch: runtime.GOARCH, LandlockABI: 7, Mounts: make([]profiles.MountFacts, len(s.Mounts))}
	host.Root = profiles.MountFacts{Path: "/var/lib/docker/overlay2/id/merged", Mode: unix.S_IFDIR}
	for i := range host.Mounts {
		host.Mounts[i] = profiles.MountFacts{Path: "/home/x", Mode: unix.S_IFREG}
	}
	plan, err := profiles.PlanContainer(s, p, host)
	if err != nil {
		tb.Fatal(err)
	}
	return plan.Seccomp
}

func mustCompile(tb testing.TB, f *profiles.SeccompFilter) []unix.SockFilter {
	tb.Helper()
	program, err := compile(f)
	if err != nil {
		tb.Fatal(err)
	}
	return program
}

// The programs decoded to what they answer: a change of policy or of the compiler shows here.
func TestCompile_Golden(t *testing.T) {
	abis, err := filterABIs(&profiles.SeccompFilter{Arch: runtime.GOARCH})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range filters(t, "docker", nil) {
		file := filepath.Join("testdata", f.Name+"."+runtime.GOARCH+".policy")
		got := policyText(mustCompile(t, &f), abis[0])
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			if runtime.GOARCH != "amd64" && os.IsNotExist(err) {
				t.Skipf("probe golden: none for %s", runtime.GOARCH)
			}
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs; run with -update and read the difference", file)
		}
	}
}

// decide is what a filter means, without libseccomp or BPF. Where several rules match with different actions it has no
// opinion, nor about calls that a 32-bit ABI has twice (socket and socketcall, semop and ipc), where libseccomp adds
// rules for both.
func decide(f *profiles.SeccompFilter, abis []abi, c call) (profiles.SeccompAction, bool) {
	i := slices.IndexFunc(abis, func(a abi) bool {
		x32 := a.token == unix.AUDIT_ARCH_X86_64 && c.nr >= x32Bit && c.nr != 0xffffffff
		return a.token == c.arch && x32 == (a.offset != 0)
	})
	if i < 0 {
		return f.BadArch, true
	}
	a := abis[i]
	if !a.native {
		if name, err := libseccomp.ScmpSyscall(c.nr &^ a.offset).GetNameByArch(a.arch); err == nil {
			if _, ok := a.number(name); !ok {
				return f.Default, false
			}
		}
		for i := range c.args { // all further ABIs have 32-bit arguments
			c.args[i] &= 0xffffffff
		}
	}
	if errno, ok := refusalOf(f, a, c); ok {
		return profiles.SeccompAction{Do: profiles.DoErrno, Errno: errno}, true
	}
	if unknownTo(f, a, c.nr) {
		return *f.Unknown, true
	}
	answer, matched := f.Default, false
	for i := range f.Rules {
		r := &f.Rules[i]
		if !ruleMatches(r, a, c) {
			continue
		}
		if matched && answer != r.Action {
			return answer, false
		}
		answer, matched = r.Action, true
	}
	return answer, true
}

func refusalOf(f *profiles.SeccompFilter, a abi, c call) (uint16, bool) {
	for _, r := range f.Refuse {
		mask := r.Mask
		if mask == 0 {
			mask = 0xffffffff
		}
		if nr, ok := a.number(r.Syscall); ok && nr == c.nr && uint32(c.args[r.Arg])&mask == r.Value && (r.And == nil || uint32(c.args[r.And.Arg]) == r.And.Value) {
			return r.Errno, true
		}
	}
	return 0, false
}

// unknownTo leaves out -1 of amd64, a call that a tracer took back.
func unknownTo(f *profiles.SeccompFilter, a abi, nr uint32) bool {
	newest, ok := uint32(0), false
	for i := range f.Rules {
		for _, n := range numbersOf(&f.Rules[i], a) {
			newest, ok = max(newest, n), true
		}
	}
	if !ok || f.Unknown == nil || nr == 0xffffffff && a.token == unix.AUDIT_ARCH_X86_64 {
		return false
	}
	_, named := a.name(nr)
	return nr > newest || a.native && !named
}

func ruleMatches(r *profiles.SeccompRule, a abi, c call) bool {
	if !slices.Contains(numbersOf(r, a), c.nr) {
		return false
	}
	for _, arg := range r.Args {
		v := c.args[arg.Index]
		ok := false
		switch arg.Op {
		case profiles.OpEqual:
			ok = v == arg.Value
		case profiles.OpNotEqual:
			ok = v != arg.Value
		case profiles.OpLess:
			ok = v < arg.Value
		case profiles.OpLessEqual:
			ok = v <= arg.Value
		case profiles.OpGreater:
			ok = v > arg.Value
		case profiles.OpGreaterEqual:
			ok = v >= arg.Value
		case profiles.OpMasked:
			ok = v&arg.Mask == arg.Value
		}
		if !ok {
			return false
		}
	}
	return true
}

// numbersOf remembers the numbers of a rule's names: looking them up is most of a comparison's time.
func numbersOf(r *profiles.SeccompRule, a abi) []uint32 {
	key := ruleABI{r, a}
	if known, ok := ruleNumbers[key]; ok {
		return known
	}
	out := make([]uint32, 0, len(r.Names))
	for _, n := range r.Names {
		if nr, ok := a.number(n); ok {
			out = append(out, nr)
		}
	}
	ruleNumbers[key] = out
	return out
}

type ruleABI struct {
	rule *profiles.SeccompRule
	abi  abi
}

var ruleNumbers = map[ruleABI][]uint32{}

func answerOf(a profiles.SeccompAction) uint32 {
	switch a.Do {
	case profiles.DoAllow:
		return unix.SECCOMP_RET_ALLOW
	case profiles.DoErrno:
		return unix.SECCOMP_RET_ERRNO | uint32(a.Errno)
	case profiles.DoTrace:
		return unix.SECCOMP_RET_TRACE | uint32(a.Errno)
	case profiles.DoLog:
		return unix.SECCOMP_RET_LOG
	case profiles.DoNotify:
		return unix.SECCOMP_RET_USER_NOTIF
	case profiles.DoTrap:
		return unix.SECCOMP_RET_TRAP
	case profiles.DoKillThread:
		return unix.SECCOMP_RET_KILL_THREAD
	case profiles.DoKillProcess:
		return unix.SECCOMP_RET_KILL_PROCESS
	}
	panic(a.Do)
}

// vectors are the arguments at which a call's answer could change: around each constant, with high bits set as well.
func vectors(f *profiles.SeccompFilter, name string) [][6]uint64 {
	out := [][6]uint64{{}, {^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}}
	for index, values := range edges(f, name) {
		slices.Sort(values)
		values = slices.Compact(values)
		for _, base := range out {
			if len(out) > 4000 {
				break
			}
			for _, v := range values {
				base[index] = v
				out = append(out, base)
			}
		}
	}
	return out
}

// edges are the values around each constant that a call's arguments are compared with.
func edges(f *profiles.SeccompFilter, name string) (out [6][]uint64) {
	add := func(index uint8, v uint64) {
		out[index] = append(out[index], v-1, v, v+1, v|1<<32, v|1<<63)
	}
	for _, r := range f.Refuse {
		if r.Syscall == name {
			add(r.Arg, uint64(r.Value))
			add(r.Arg, uint64(r.Value)|0x80000)
			if r.And != nil {
				add(r.And.Arg, uint64(r.And.Value))
			}
		}
	}
	for i := range f.Rules {
		if !slices.Contains(f.Rules[i].Names, name) {
			continue
		}
		for _, a := range f.Rules[i].Args {
			add(a.Index, a.Value)
			for bit := a.Mask; bit != 0; bit &= bit - 1 {
				out[a.Index] = append(out[a.Index], a.Value^(bit&-bit))
			}
		}
	}
	return out
}

// Differential: the compiled program, run by an interpreter, against the description.
func TestCompile_MeansWhatItSays(t *testing.T) {
	packs := func(k ...profiles.Pack) func(*profiles.Profile) {
		return func(p *profiles.Profile) { p.Syscalls.Packs = k }
	}
	for _, c := range []struct {
		name, spec string
		change     func(*profiles.Profile)
	}{
		{"docker", "docker", nil},
		{"podman", "podman", nil},
		{"debug", "containerd", packs(profiles.PackDebug)},
		{"browser", "containerd", packs(profiles.PackBrowser)},
		{"containers", "containerd", packs(profiles.PackContainers, profiles.PackSudo)},
		{"ports", "docker", func(p *profiles.Profile) { p.Network.ConnectPorts = []profiles.PortRange{} }},
		{"lists", "containerd", func(p *profiles.Profile) {
			p.Syscalls.Allow, p.Syscalls.Deny = []string{"socket", "bpf"}, []string{"clone", "personality", "read"}
		}},
		{"none", "podman", func(p *profiles.Profile) { p.Unrestricted = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range filters(t, c.spec, c.change) {
				compareAll(t, &f)
			}
		})
	}
}

func compareAll(t *testing.T, f *profiles.SeccompFilter) {
	t.Helper()
	abis, err := filterABIs(f)
	if err != nil {
		t.Fatal(err)
	}
	program := mustCompile(t, f)
	calls := append(plainCalls(), edgeCalls(f, abis)...)
	undecided, wrong := 0, 0
	for _, c := range calls {
		want, ok := decide(f, abis, c)
		if !ok {
			undecided++
			continue
		}
		if got := evaluate(program, c); got != answerOf(want) {
			if wrong++; wrong < 10 {
				t.Errorf("%s: number %#x arch %#x args %#x: got %s, want %s", f.Name, c.nr, c.arch, c.args, answerText(got), want)
			}
		}
	}
	if undecided > len(calls)/100 {
		t.Errorf("%s: %d of %d calls are undecided", f.Name, undecided, len(calls))
	}
	t.Logf("%s: %d instructions, %d calls compared, %d undecided", f.Name, len(program), len(calls), undecided)
}

// plainCalls are all numbers of all ABIs with a few arguments.
func plainCalls() []call {
	numbers := []uint32{0xffffffff, 0xfffffffe, 0x7fffffff, x32Bit, x32Bit - 1, 5000, 100000}
	for nr := range uint32(520) {
		numbers = append(numbers, nr, nr|x32Bit)
	}
	var out []call
	for _, arch := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_ARM, 0} {
		for _, nr := range numbers {
			for _, args := range [][6]uint64{{}, {1}, {^uint64(0), ^uint64(0), ^uint64(0)}} {
				out = append(out, call{nr, arch, args})
			}
		}
	}
	return out
}

// edgeCalls are the calls whose arguments a filter compares, at every edge.
func edgeCalls(f *profiles.SeccompFilter, abis []abi) []call {
	names := map[string]bool{}
	for i := range f.Rules {
		for _, n := range f.Rules[i].Names {
			names[n] = names[n] || len(f.Rules[i].Args) > 0
		}
	}
	for _, r := range f.Refuse {
		names[r.Syscall] = true
	}
	var out []call
	for n, compares := range names {
		for _, a := range abis {
			nr, ok := a.number(n)
			if !ok || !compares {
				continue
			}
			for _, args := range vectors(f, n) {
				out = append(out, call{nr, a.token, args})
			}
		}
	}
	return out
}

// Every name that the profile knows exists somewhere: a typing error would silently refuse.
func TestNames_Exist(t *testing.T) {
	known := map[string]bool{}
	for _, s := range newerSyscalls() {
		known[s.name] = true
	}
	// Removed from the kernel, or of an architecture without an own name table in libseccomp.
	for _, n := range []string{"uprobe", "uretprobe"} {
		known[n] = true
	}
	for _, f := range filters(t, "containerd", func(p *profiles.Profile) {
		p.Syscalls.Packs = []profiles.Pack{profiles.PackDebug, profiles.PackBrowser, profiles.PackContainers}
	}) {
		for i := range f.Rules {
			for _, n := range f.Rules[i].Names {
				found := known[n]
				for _, arch := range []string{"SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"} {
					a, _ := lookupABI(arch)
					_, ok := a.number(n)
					found = found || ok
				}
				if !found {
					t.Errorf("%s: no architecture has it", n)
				}
			}
		}
	}
}

func TestRun_BadInput(t *testing.T) {
	good, err := json.Marshal(filters(t, "containerd", nil)[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := run(bytes.NewReader(good), &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]string{
		"empty":         "",
		"not JSON":      "x",
		"cut off":       string(good[:len(good)/2]),
		"unknown field": `{"arch":"amd64","extra":1}`,
		"architecture":  strings.Replace(string(good), `"arch":"`+runtime.GOARCH+`"`, `"arch":"mips"`, 1),
		"action":        strings.Replace(string(good), `"do":"allow"`, `"do":"maybe"`, 1),
		"comparison":    strings.Replace(string(good), `"op":"\u0026"`, `"op":"~"`, 1),
		"refusal":       strings.Replace(string(good), `"arg":2`, `"arg":6`, 1),
		"no default":    `{"arch":"` + runtime.GOARCH + `","badArch":{"do":"allow"},"default":{"do":""}}`,
	} {
		var out bytes.Buffer
		if err := run(strings.NewReader(in), &out); err == nil || out.Len() > 0 {
			t.Errorf("%s: error %v, %d bytes of output", name, err, out.Len())
		}
	}
}

func BenchmarkFilter(b *testing.B) {
	for _, f := range filters(b, "docker", nil) {
		b.Run("compile/"+f.Name, func(b *testing.B) {
			for b.Loop() {
				mustCompile(b, &f)
			}
		})
		program := mustCompile(b, &f)
		for _, name := range []string{"read", "futex", "openat", "clone", "socket", "ioctl"} {
			abis, _ := filterABIs(&f)
			nr, _ := abis[0].number(name)
			steps := 0
			b.Run("steps/"+f.Name+"/"+name, func(b *testing.B) {
				for b.Loop() {
					steps = countSteps(program, call{nr: nr, arch: abis[0].token, args: [6]uint64{1}})
				}
				b.ReportMetric(float64(steps), "instructions")
			})
		}
	}
}

func countSteps(program []unix.SockFilter, c call) int {
	n := 0
	counted := slices.Clone(program)
	var a uint32
	for pc := 0; ; pc++ {
		n++
		i := counted[pc]
		switch i.Code {
		case opLoad:
			a = c.word(i.K)
		case opAnd:
			a &= i.K
		case opAlways:
			pc += int(i.K)
		case opReturn:
			return n
		default:
			pc += jump(i, compare(i, a))
		}
	}
}
