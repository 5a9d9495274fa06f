package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/profiles"
)

// buildVictim compiles testdata/victim.c; the compiler is there, since the package under test needs it.
func buildVictim(t *testing.T) string {
	t.Helper()
	victim := filepath.Join(t.TempDir(), "victim")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-O1", "-Wall", "-Werror", "-o", victim, "testdata/victim.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return victim
}

// suffer runs the victim under filters and returns what each try came to.
func suffer(t *testing.T, victim string, list []profiles.SeccompFilter) map[string]string {
	t.Helper()
	dir := t.TempDir()
	var files []string
	for i := range list {
		file := filepath.Join(dir, list[i].Name+".bpf")
		if err := os.WriteFile(file, encode(mustCompile(t, &list[i])), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, victim, files...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	got := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		name, result, _ := strings.Cut(line, " ")
		got[name] = result
	}
	if err != nil || got["alive"] != "ok" {
		t.Fatalf("the victim died: %v %s\n%s", err, errs.String(), out)
	}
	return got
}

// results are expectations as "name result name result".
func results(text string) map[string]string {
	out := map[string]string{}
	f := strings.Fields(text)
	for i := 0; i+1 < len(f); i += 2 {
		out[f[i]] = f[i+1]
	}
	return out
}

// expect compares what the victim met with what was expected, but for some names.
func expect(t *testing.T, got, want map[string]string, except ...string) {
	t.Helper()
	for name, result := range want {
		if !slices.Contains(except, name) && got[name] != result {
			t.Errorf("%s: got %q, want %q", name, got[name], result)
		}
	}
}

const refusedByAgent = `
	socket-netlink-diag EPROTONOSUPPORT socket-netlink-audit EPROTONOSUPPORT socket-netlink-xfrm EPROTONOSUPPORT
	socket-netlink-netfilter EPROTONOSUPPORT
	socket-alg EAFNOSUPPORT socket-alg-high-bit EAFNOSUPPORT socket-vsock EAFNOSUPPORT socket-packet EAFNOSUPPORT
	socket-inet-packet EAFNOSUPPORT socket-inet-packet-cloexec EAFNOSUPPORT socket-key EAFNOSUPPORT
	socket-rxrpc EAFNOSUPPORT socket-xdp EAFNOSUPPORT socket-tipc EAFNOSUPPORT socket-can EAFNOSUPPORT
	socket-bluetooth EAFNOSUPPORT socket-smc EAFNOSUPPORT socket-unspec EAFNOSUPPORT
	socket-mptcp EPROTONOSUPPORT socket-mptcp6 EPROTONOSUPPORT socket-mptcp-high-bit EPROTONOSUPPORT
	socket-sctp EPROTONOSUPPORT socket-dccp EPROTONOSUPPORT socket-l2tp EPROTONOSUPPORT
	socketpair-alg EOPNOTSUPP socketpair-inet EOPNOTSUPP
	ioctl-tiocsti EPERM ioctl-tiocsti-high-bit EPERM ioctl-tiocsti-sign EPERM ioctl-tioclinux EPERM ioctl-tiocsetd EPERM
	ptrace-traceme EPERM ptrace-attach EPERM process_vm_readv EPERM process_vm_writev EPERM kcmp EPERM pidfd_getfd EPERM
	clone3 ENOSYS
	unshare-newns EPERM unshare-newcgroup EPERM unshare-newuts EPERM unshare-newipc EPERM unshare-newuser EPERM
	unshare-newpid EPERM unshare-newnet EPERM unshare-newtime EPERM
	clone-newns EPERM clone-newcgroup EPERM clone-newuts EPERM clone-newipc EPERM clone-newuser EPERM clone-newpid EPERM
	clone-newnet EPERM setns EPERM
	personality-norandomize EPERM personality-norandomize-high-bit EPERM personality-mmap-page-zero EPERM
	io_uring_setup EPERM io_uring_enter EPERM io_uring_register EPERM userfaultfd EPERM keyctl EPERM add_key EPERM
	request_key EPERM bpf EPERM perf_event_open EPERM mount EPERM umount2 EPERM pivot_root EPERM open_tree EPERM
	move_mount EPERM fsopen EPERM fsconfig EPERM fsmount EPERM fspick EPERM mount_setattr EPERM open_tree_attr EPERM
	init_module EPERM finit_module EPERM delete_module EPERM kexec_load EPERM reboot EPERM swapon EPERM
	settimeofday EPERM clock_settime EPERM sethostname EPERM syslog EPERM acct EPERM quotactl EPERM
	fanotify_init EPERM open_by_handle_at EPERM mbind EPERM
	unknown-5000 ENOSYS unknown-399 ENOSYS`

const allowedByAgent = `
	socket-unix ok socket-inet ok socket-inet-udp ok socket-inet6 ok socket-netlink-route ok socketpair-unix ok
	ioctl-fionread ENOTTY fork ok pidfd_open ok personality-query ok personality-linux32 ok
	personality-linux ok memfd_create ok seccomp ok close_range ok`

// From inside: alone, and behind each engine's own filter, whose errnos must not be the ones that are seen.
func TestAgentFilter_Victim(t *testing.T) {
	victim := buildVictim(t)
	for _, spec := range []string{"containerd", "docker", "podman"} {
		t.Run(spec, func(t *testing.T) {
			got := suffer(t, victim, filters(t, spec, nil))
			expect(t, got, results(refusedByAgent+allowedByAgent))
			if spec == "containerd" { // it has no filter; those of engines compare 64 bits
				expect(t, got, results("personality-query-signed ok"))
			}
			// Newer than the engine's filter, so unknown to it; the kernel answers for the rest.
			for _, name := range []string{"futex_wake", "mseal", "landlock_create_ruleset", "unknown-minus-one"} {
				if got[name] == "EPERM" && name != "unknown-minus-one" || got[name] == "" {
					t.Errorf("%s: got %q", name, got[name])
				}
			}
		})
	}
}

// Calls through the 32-bit gate and x32 would not meet the rules for their numbers.
func TestAttack_CompatABIs(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skipf("probe compat ABIs: %s has no gate for them", runtime.GOARCH)
	}
	victim := buildVictim(t)
	free, got := suffer(t, victim, nil), suffer(t, victim, filters(t, "docker", nil))
	expect(t, got, results("x32-getpid ENOSYS x32-socket ENOSYS x32-ptrace ENOSYS"))
	if free["int80-getpid"] == "SIGSEGV" {
		t.Skip("probe ia32: this kernel has no 32-bit gate (CONFIG_IA32_EMULATION)")
	}
	expect(t, got, results("int80-getpid ENOSYS int80-socket ENOSYS int80-socketcall ENOSYS"))
}

// Without a filter the victim gets other answers, or the test above would prove nothing.
func TestAgentFilter_VictimUnfiltered(t *testing.T) {
	got := suffer(t, buildVictim(t), nil)
	same := 0
	for name, filtered := range results(refusedByAgent) {
		if got[name] == filtered {
			same++
			t.Logf("%s: %s without a filter as well", name, filtered)
		}
	}
	if total := len(results(refusedByAgent)); same > total/2 {
		t.Errorf("%d of %d tries end the same without a filter", same, total)
	}
}

// What each pack opens, and that it opens nothing else of the list.
func TestPacks_Victim(t *testing.T) {
	victim := buildVictim(t)
	for _, c := range []struct {
		pack    profiles.Pack
		changes string // names whose answer is no longer EPERM
	}{
		{profiles.PackSudo, ""},
		{profiles.PackDebug, "ptrace-traceme ptrace-attach process_vm_readv process_vm_writev kcmp pidfd_getfd personality-norandomize personality-norandomize-high-bit"},
		{profiles.PackBrowser, "unshare-newuser unshare-newpid unshare-newnet clone-newuser clone-newpid clone-newnet setns"},
	} {
		t.Run(string(c.pack), func(t *testing.T) {
			got := suffer(t, victim, filters(t, "containerd", func(p *profiles.Profile) { p.Syscalls.Packs = []profiles.Pack{c.pack} }))
			changed := strings.Fields(c.changes)
			expect(t, got, results(refusedByAgent), changed...)
			opened := 0
			for _, name := range changed {
				if got[name] == "" {
					t.Errorf("%s was not tried", name)
				}
				if got[name] != "EPERM" {
					opened++
				}
			}
			if len(changed) > 0 && opened == 0 {
				t.Error("the pack opens nothing")
			}
		})
	}
}

// snapd compared all 64 bits of ioctl's request, of which the kernel takes 32.
func TestAttack_CVE_2019_7303_HighBits(t *testing.T) {
	got := suffer(t, buildVictim(t), filters(t, "containerd", nil))
	expect(t, got, results("ioctl-tiocsti EPERM ioctl-tiocsti-high-bit EPERM ioctl-tiocsti-sign EPERM "+
		"socket-mptcp-high-bit EPROTONOSUPPORT socket-alg-high-bit EAFNOSUPPORT"))
}
