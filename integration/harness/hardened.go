package harness

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// AgentCapabilities is the profile's set as the kernel prints it: chown, dac_override, fowner, fsetid, kill, setgid,
// setuid, setpcap, net_bind_service, sys_chroot, setfcap.
const AgentCapabilities = "00000000800405fb"

const none = "0000000000000000"

// refusals are the calls that the agent profile refuses, each with the answers that are right. "absent" marks those
// that this kernel may lack: its own answer is as good.
func refusals() map[string]string {
	const refused = "EPERM|ENOSYS"
	return map[string]string{
		"io_uring_setup": refused, "io_uring_enter": refused, "io_uring_register": refused,
		"mount": "EPERM", "umount2": "EPERM", "pivot_root": "EPERM", "fsopen": refused, "fsmount": refused, "fspick": refused, "open_tree": refused,
		"move_mount": refused, "mount_setattr": refused, "setns": "EPERM", "unshare mount": "EPERM", "unshare network": "EPERM",
		"unshare user namespace": "EPERM", "clone user namespace": "EPERM", "clone pid namespace": "EPERM", "clone3": "ENOSYS",
		"bpf": refused, "perf_event_open": refused, "userfaultfd": refused, "keyctl": refused, "add_key": refused, "request_key": refused,
		"kexec_load": refused, "init_module": refused, "finit_module": refused, "delete_module": refused, "open_by_handle_at": refused,
		"swapon": refused, "acct": refused, "settimeofday": refused, "syslog": refused, "quotactl": refused,
		"ptrace attach to a child": "EPERM", "process_vm_readv": refused, "process_vm_writev": refused, "read a child's memory": refused,
		"personality no randomisation": "EPERM", "unknown": "ENOSYS", "ioctl TIOCSTI": "EPERM", "ioctl TIOCLINUX": "EPERM", "ioctl TIOCSTI with high bits": "EPERM",
		"socket alg": "EPERM|EAFNOSUPPORT", "socket vsock": "EPERM|EAFNOSUPPORT", "socket packet": "EPERM|EAFNOSUPPORT", "socket key": "EPERM|EAFNOSUPPORT",
		"socket xdp": "EPERM|EAFNOSUPPORT", "socket rxrpc": "EPERM|EAFNOSUPPORT", "socket tipc": "EPERM|EAFNOSUPPORT", "socket raw": "EPERM",
		"socket mptcp": "EPERM|EPROTONOSUPPORT", "socket smc": "EPERM|EPROTONOSUPPORT", "socket seqpacket": "EPERM|ESOCKTNOSUPPORT", "socket netlink netfilter": "EPERM|EPROTONOSUPPORT", "socket netlink xfrm": "EPERM|EPROTONOSUPPORT",
		"mknod block device": "EPERM|EACCES", "write sysrq-trigger": "EROFS|ENOENT|EACCES", "write core_pattern": "EROFS|EACCES",
		"write release_agent": "EROFS|ENOENT|EACCES",
	}
}

// grants are the calls that work needs.
func grants() map[string]string {
	return map[string]string{
		"memfd_create": "EFAULT", "pidfd_open": "EINVAL|EBADF", "seccomp": "EINVAL", "landlock_create_ruleset": "EFAULT|EOPNOTSUPP", "renameat2": "EFAULT",
		"close_range": "EINVAL", "socket unix": "ok", "socket tcp": "ok", "socket tcp6": "ok|EAFNOSUPPORT", "socket udp": "ok", "socket netlink route": "ok",
		"unshare nothing": "ok|EPERM",
	}
}

// Report is what `probe report` prints, run inside a container.
type Report struct {
	Status map[string]string
	Calls  map[string]string
	FDs    []string
	Cwd    string
}

// ParseReport reads the report on r's standard output.
func ParseReport(t testing.TB, r Result) Report {
	t.Helper()
	var out Report
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil || r.Exit != 0 {
		t.Fatalf("report: %v\n%v", err, r)
	}
	return out
}

// WantHardened checks that a process in a container of the profile agent has what that profile promises, whichever
// engine and whichever way brought it there. user says that it does not run as root.
func WantHardened(t testing.TB, r Report, user bool) {
	t.Helper()
	wantCaps := map[string]string{"CapInh": none, "CapPrm": AgentCapabilities, "CapEff": AgentCapabilities, "CapBnd": AgentCapabilities, "CapAmb": none}
	if user {
		wantCaps["CapPrm"], wantCaps["CapEff"] = none, none
	}
	for field, want := range wantCaps {
		if r.Status[field] != want {
			t.Errorf("%s is %s, want %s", field, r.Status[field], want)
		}
	}
	if r.Status["NoNewPrivs"] != "1" || r.Status["Seccomp"] != "2" {
		t.Errorf("NoNewPrivs %s, Seccomp %s, want 1 and 2", r.Status["NoNewPrivs"], r.Status["Seccomp"])
	}
	if len(r.FDs) != 3 {
		t.Errorf("open descriptors: %v", r.FDs)
	}
	for call, want := range refusals() {
		if user && call == "ioctl TIOCSTI" {
			continue
		}
		if !regexp.MustCompile("^(" + want + ")$").MatchString(r.Calls[call]) {
			t.Errorf("%s gives %q, want %s", call, r.Calls[call], want)
		}
	}
	for call, want := range grants() {
		if !regexp.MustCompile("^(" + want + ")$").MatchString(r.Calls[call]) {
			t.Errorf("%s gives %q, want %s: work needs it", call, r.Calls[call], want)
		}
	}
	for call, got := range r.Calls {
		if strings.HasPrefix(got, "killed") && call != "int 0x80 getpid" {
			t.Errorf("%s is %s: a filter answers with an errno", call, got)
		}
	}
	for _, call := range []string{"int 0x80 getpid", "x32 getpid"} {
		if r.Calls[call] == "ok" {
			t.Errorf("%s passes the filter", call)
		}
	}
}
