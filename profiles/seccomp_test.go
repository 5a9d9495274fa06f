package profiles

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	moby "github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func names(list []string) map[string]bool {
	out := map[string]bool{}
	for _, n := range list {
		out[n] = true
	}
	return out
}

// Against Docker's own list: what it allows every container is allowed here too, or refused by decision. An update of
// that list shows up here.
func TestAgentFilter_AgainstMoby(t *testing.T) {
	allowed, no := names(baseAllowed()), map[string]bool{}
	for _, r := range refused() {
		for _, n := range r.names {
			no[n] = true
			if r.why == "" || allowed[n] {
				t.Errorf("%s: refused without a reason, or allowed as well", n)
			}
		}
	}
	conditional := names([]string{"clone", "clone3", "personality", "socket", "socketpair"})
	// Of other architectures, or calls that hide another's number where no filter can look.
	ignored := names([]string{"socketcall", "riscv_hwprobe", "riscv_flush_icache", "s390_pci_mmio_read", "s390_pci_mmio_write", "s390_runtime_instr", "swapcontext"})
	theirs := mobyAllowed()
	for n := range theirs {
		if !allowed[n] && !foreign(n) && !conditional[n] && !no[n] && !ignored[n] {
			t.Errorf("%s: allowed by Docker, and nothing is decided about it here", n)
		}
	}
	// The other way: nothing is allowed that Docker refuses, but for these.
	ours := map[string]string{
		"chroot": "with CAP_SYS_CHROOT, which every container has", "uprobe": "as uretprobe: a probe of the host's on a library",
		"rseq_slice_yield": "as rseq", "file_getattr": "as the ioctl", "file_setattr": "as the ioctl",
	}
	for _, n := range baseAllowed() {
		if !theirs[n] && ours[n] == "" {
			t.Errorf("%s: allowed here and not by Docker", n)
		}
	}
}

// mobyAllowed are the names that Docker allows a container without added capabilities, whatever the arguments.
func mobyAllowed() map[string]bool {
	out := map[string]bool{}
	for _, rule := range moby.DefaultProfile().Syscalls {
		if rule.Action != specs.ActAllow || rule.Includes != nil && len(rule.Includes.Caps) > 0 {
			continue
		}
		for _, n := range rule.Names {
			out[n] = true
		}
	}
	return out
}

// foreign are the names that only 32-bit ABIs have.
func foreign(n string) bool {
	for _, suffix := range []string{"32", "_time64", "stat64", "statfs64", "statat64"} {
		if strings.HasSuffix(n, suffix) {
			return true
		}
	}
	switch n {
	case "_llseek", "_newselect", "arm_fadvise64_64", "arm_sync_file_range", "breakpoint", "cacheflush", "clock_adjtime64",
		"clock_gettime64", "fadvise64_64", "fcntl64", "ftruncate64", "ipc", "mmap2", "recv", "send", "sendfile64", "set_tls",
		"sigprocmask", "sigreturn", "sync_file_range2", "timer_gettime64", "timer_settime64", "timerfd_gettime64",
		"timerfd_settime64", "truncate64", "ugetrlimit", "waitpid":
		return true
	}
	return false
}

// libseccomp decides about overlapping rules by its own order, so there must be none that differ in their action.
func TestAgentFilter_RulesDoNotOverlap(t *testing.T) {
	for _, packs := range [][]Pack{nil, {PackDebug}, {PackBrowser}, {PackContainers}, {PackDebug, PackSudo, PackBrowser, PackContainers}} {
		p := agent()
		p.Syscalls = Syscalls{Packs: packs, Allow: []string{"socket", "ptrace", "read", "read"}, Deny: []string{"personality", "mount", "write"}}
		f := agentFilter(p, "amd64")
		checkOverlaps(t, f)
		for name, want := range map[string]bool{"socket": true, "ptrace": true, "read": true, "mount": false, "personality": false, "write": false} {
			if f.allows(name) != want {
				t.Errorf("packs %v: allows(%s) is %v", packs, name, !want)
			}
		}
		for _, r := range f.Refuse {
			if r.Syscall == "socket" {
				t.Error("socket was allowed as a whole")
			}
		}
	}
}

func checkOverlaps(t *testing.T, f *SeccompFilter) {
	t.Helper()
	bare, conditional := map[string]int{}, map[string]int{}
	for i := range f.Rules {
		count := bare
		if len(f.Rules[i].Args) > 0 {
			count = conditional
		}
		for _, n := range f.Rules[i].Names {
			count[n]++
		}
		seen := map[uint8]bool{}
		for _, a := range f.Rules[i].Args {
			if seen[a.Index] {
				t.Errorf("rule for %v compares argument %d twice", f.Rules[i].Names, a.Index)
			}
			seen[a.Index] = true
		}
	}
	for n, count := range bare {
		if count > 1 || conditional[n] > 0 {
			t.Errorf("%s has %d rules without conditions and %d with", n, count, conditional[n])
		}
	}
}

func TestAgentFilter_Packs(t *testing.T) {
	for _, c := range []struct {
		pack    Pack
		allowed string
		refused string
	}{
		{PackDebug, "ptrace process_vm_readv kcmp", "mount unshare setns"},
		{PackSudo, "", "ptrace mount unshare"},
		{PackBrowser, "setns chroot", "mount ptrace pivot_root umount2"},
		{PackContainers, "mount umount2 pivot_root unshare setns clone sethostname", "ptrace bpf keyctl init_module reboot"},
	} {
		p := agent()
		p.Syscalls.Packs = []Pack{c.pack}
		f := agentFilter(p, "amd64")
		for n := range strings.FieldsSeq(c.allowed) {
			if !f.allows(n) {
				t.Errorf("pack %s: %s is refused", c.pack, n)
			}
		}
		for n := range strings.FieldsSeq(c.refused) {
			if f.allows(n) {
				t.Errorf("pack %s: %s is allowed", c.pack, n)
			}
		}
	}
}

func TestFilterFromOCI(t *testing.T) {
	arg := func(i uint, op specs.LinuxSeccompOperator, v, v2 uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: i, Op: op, Value: v, ValueTwo: v2}
	}
	in := &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, DefaultErrnoRet: new(uint(5)),
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32, specs.ArchX86},
		Flags:         []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow},
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"read", "no such call", "write"}, Action: specs.ActAllow},
			{Names: []string{"clone"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg(0, specs.OpMaskedEqual, 0x7e020000, 0)}},
			{Names: []string{"mount"}, Action: specs.ActErrno, ErrnoRet: new(uint(38)), Args: []specs.LinuxSeccompArg{arg(0, specs.OpEqualTo, 1, 0), arg(1, specs.OpNotEqual, 2, 0)}},
			{Names: []string{"ioctl"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg(1, specs.OpLessThan, 1, 0), arg(1, specs.OpGreaterThan, 9, 0)}},
			{Names: []string{"socket"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg(0, specs.OpNotEqual, 40, 0), arg(0, specs.OpNotEqual, 38, 0)}},
			{Names: []string{"not a name"}, Action: specs.ActKill},
			{Names: []string{"kexec_load"}, Action: specs.ActKill},
		},
	}
	allow := SeccompAction{Do: DoAllow}
	want := []SeccompRule{
		{Names: []string{"read", "write"}, Action: allow},
		{Names: []string{"clone"}, Action: allow, Args: []SeccompArg{{0, OpMasked, 0, 0x7e020000}}},
		{Names: []string{"mount"}, Action: SeccompAction{DoErrno, 38}, Args: []SeccompArg{{0, OpEqual, 1, 0}, {1, OpNotEqual, 2, 0}}},
		{Names: []string{"ioctl"}, Action: allow, Args: []SeccompArg{{1, OpLess, 1, 0}}},
		{Names: []string{"ioctl"}, Action: allow, Args: []SeccompArg{{1, OpGreater, 9, 0}}},
		{Names: []string{"socket"}, Action: allow, Args: []SeccompArg{{0, OpLess, 38, 0}}},
		{Names: []string{"socket"}, Action: allow, Args: []SeccompArg{{0, OpEqual, 39, 0}}},
		{Names: []string{"socket"}, Action: allow, Args: []SeccompArg{{0, OpGreater, 40, 0}}},
		{Names: []string{"kexec_load"}, Action: SeccompAction{Do: DoKillThread}},
	}
	f, err := FilterFromOCI(in, "amd64", false)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(f.Rules, want) {
		t.Errorf("rules\n got %+v\nwant %+v", f.Rules, want)
	}
	if f.Default != (SeccompAction{DoErrno, 5}) || *f.Unknown != (SeccompAction{DoErrno, eNOSYS}) || f.BadArch != (SeccompAction{DoErrno, eNOSYS}) || f.Flags != 6 || f.Compat != nil {
		t.Errorf("%+v", f)
	}
	f, err = FilterFromOCI(in, "amd64", true)
	if err != nil || !reflect.DeepEqual(f.Compat, []string{"SCMP_ARCH_X86", "SCMP_ARCH_X32"}) {
		t.Errorf("compat %v %v", f.Compat, err)
	}
	permissive, err := FilterFromOCI(&specs.LinuxSeccomp{DefaultAction: specs.ActAllow}, "arm64", false)
	if err != nil || permissive.Unknown != nil {
		t.Errorf("a filter that allows by default knows no unknown calls: %+v, %v", permissive, err)
	}
}

func TestFilterFromOCI_Errors(t *testing.T) {
	ok := specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActAllow}
	with := func(change func(*specs.LinuxSeccomp)) *specs.LinuxSeccomp {
		s := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{ok}}
		change(s)
		return s
	}
	many := make([]string, maxFilterNames+1)
	for i := range many {
		many[i] = "read"
	}
	for _, c := range []struct {
		name, goarch, want string
		in                 *specs.LinuxSeccomp
	}{
		{"action", "amd64", "linux.seccomp.defaultAction", with(func(s *specs.LinuxSeccomp) { s.DefaultAction = "SCMP_ACT_X" })},
		{"empty action", "amd64", "linux.seccomp.syscalls[0].action", with(func(s *specs.LinuxSeccomp) { s.Syscalls[0].Action = "" })},
		{"errno of allow", "amd64", "takes no errnoRet", with(func(s *specs.LinuxSeccomp) { s.Syscalls[0].ErrnoRet = new(uint(1)) })},
		{"errno", "amd64", "errnoRet 4096", with(func(s *specs.LinuxSeccomp) { s.DefaultErrnoRet = new(uint(4096)) })},
		{"architecture", "amd64", "linux.seccomp.architectures[0]", with(func(s *specs.LinuxSeccomp) { s.Architectures = []specs.Arch{"amd64"} })},
		{"native architecture", "riscv64", "riscv64", with(func(*specs.LinuxSeccomp) {})},
		{"flag", "amd64", "linux.seccomp.flags[0]", with(func(s *specs.LinuxSeccomp) { s.Flags = []specs.LinuxSeccompFlag{"X"} })},
		{"no names", "amd64", "linux.seccomp.syscalls[0].names", with(func(s *specs.LinuxSeccomp) { s.Syscalls[0].Names = nil })},
		{"index", "amd64", "linux.seccomp.syscalls[0].args[0].index", with(func(s *specs.LinuxSeccomp) {
			s.Syscalls[0].Args = []specs.LinuxSeccompArg{{Index: 6, Op: specs.OpEqualTo}}
		})},
		{"operator", "amd64", "linux.seccomp.syscalls[0].args[0].op", with(func(s *specs.LinuxSeccomp) { s.Syscalls[0].Args = []specs.LinuxSeccompArg{{Op: "=="}} })},
		{"too many", "amd64", "more than", with(func(s *specs.LinuxSeccomp) { s.Syscalls[0].Names = many })},
		{"gap", "amd64", "can't be compiled together", with(func(s *specs.LinuxSeccomp) {
			s.Syscalls[0].Args = []specs.LinuxSeccompArg{{Value: 1, Op: specs.OpNotEqual}, {Value: 1 << 40, Op: specs.OpNotEqual}}
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := FilterFromOCI(c.in, c.goarch, false)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Two "not equal" of one argument mean everything but those two (containerd#13327), at every edge.
func TestRanges(t *testing.T) {
	for _, values := range [][]uint64{{0, 2}, {5, 5, 7}, {1, 2, 3}} {
		out, err := ranges(unequal(values))
		if err != nil {
			t.Fatal(err)
		}
		for v := range uint64(10) {
			match := slices.ContainsFunc(out, func(a SeccompArg) bool {
				return a.Op == OpLess && v < a.Value || a.Op == OpEqual && v == a.Value || a.Op == OpGreater && v > a.Value
			})
			if match == slices.Contains(values, v) {
				t.Errorf("%v: %d matches %v: %+v", values, v, match, out)
			}
		}
	}
	if out, err := ranges(unequal([]uint64{0, 1<<64 - 1})); err == nil {
		t.Errorf("a gap that large can't be spelt out: %v", out)
	}
}

func unequal(values []uint64) []SeccompArg {
	var out []SeccompArg
	for _, v := range values {
		out = append(out, SeccompArg{Index: 3, Op: OpNotEqual, Value: v})
	}
	return out
}

// Everything that decides about the BPF is in the key, and nothing else.
func TestSeccompFilter_Key(t *testing.T) {
	base := agentFilter(agent(), "amd64")
	seen := map[string]string{base.Key(): "base"}
	for name, change := range map[string]func(*SeccompFilter){
		"arch":     func(f *SeccompFilter) { f.Arch = "arm64" },
		"compat":   func(f *SeccompFilter) { f.Compat = []string{"SCMP_ARCH_X86"} },
		"bad arch": func(f *SeccompFilter) { f.BadArch.Do = DoKillThread },
		"unknown":  func(f *SeccompFilter) { f.Unknown = nil },
		"default":  func(f *SeccompFilter) { f.Default.Errno = 2 },
		"refuse":   func(f *SeccompFilter) { f.Refuse = f.Refuse[1:] },
		"mask":     func(f *SeccompFilter) { f.Refuse[0].Mask = 1 },
		"names":    func(f *SeccompFilter) { f.Rules[0].Names = f.Rules[0].Names[1:] },
		"split":    func(f *SeccompFilter) { f.Rules[0].Names = append([]string{"acc", "ept"}, f.Rules[0].Names[1:]...) },
		"action":   func(f *SeccompFilter) { f.Rules[0].Action.Do = DoLog },
		"args":     func(f *SeccompFilter) { f.Rules[0].Args = []SeccompArg{{0, OpEqual, 1, 0}} },
	} {
		f := agentFilter(agent(), "amd64")
		change(f)
		if other, ok := seen[f.Key()]; ok {
			t.Errorf("%s: same key as %s", name, other)
		}
		seen[f.Key()] = name
	}
	same := agentFilter(agent(), "amd64")
	same.Name, same.Flags = "x", 2
	if same.Key() != base.Key() {
		t.Error("name and flags are not in the BPF")
	}
	data, err := json.Marshal(base)
	if err != nil {
		t.Fatal(err)
	}
	var back SeccompFilter
	if err := json.Unmarshal(data, &back); err != nil || back.Key() != base.Key() {
		t.Errorf("JSON changes the key: %v", err)
	}
}

// An engine's filter that refuses seccomp(2) would keep ours out, so it goes last.
func TestPlanContainer_OrderOfFilters(t *testing.T) {
	spec := loadSpec(t, "docker")
	plan, err := PlanContainer(spec, agent(), hostOf(spec))
	if err != nil {
		t.Fatal(err)
	}
	if plan.Seccomp[0].Name != "engine" || plan.Seccomp[1].Name != NameAgent {
		t.Errorf("%s, %s", plan.Seccomp[0].Name, plan.Seccomp[1].Name)
	}
	spec.Linux.Seccomp.Syscalls = []specs.LinuxSyscall{{Names: []string{"execve", "exit_group"}, Action: specs.ActAllow}}
	if plan, err = PlanContainer(spec, agent(), hostOf(spec)); err != nil {
		t.Fatal(err)
	}
	if plan.Seccomp[0].Name != NameAgent || plan.Seccomp[1].Name != "engine" {
		t.Errorf("%s, %s", plan.Seccomp[0].Name, plan.Seccomp[1].Name)
	}
}
