package hardening

import (
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// agentCapabilities is the profile's set as the kernel prints it: chown, dac_override, fowner, fsetid, kill, setgid,
// setuid, setpcap, net_bind_service, sys_chroot, setfcap.
const agentCapabilities = "00000000800405fb"

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
		"socket mptcp": "EPERM|EPROTONOSUPPORT", "socket netlink netfilter": "EPERM|EPROTONOSUPPORT", "socket netlink xfrm": "EPERM|EPROTONOSUPPORT",
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

func TestFromInside(t *testing.T) {
	runc, agentsafe := harness.Peers(t)
	for way, r := range reports(t, agentsafe) {
		t.Run(way, func(t *testing.T) {
			wantCaps := map[string]string{"CapInh": none, "CapPrm": agentCapabilities, "CapEff": agentCapabilities, "CapBnd": agentCapabilities, "CapAmb": none}
			if strings.Contains(way, "by a user") {
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
				if strings.Contains(way, "by a user") && call == "ioctl TIOCSTI" {
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
		})
	}
	// What would be refused anyway proves nothing: under runc these go through.
	t.Run("runc", func(t *testing.T) {
		r := parseReport(t, box.Bare(t, runc).RunSpec(t, harness.Sh("exec probe report")))
		if r.Status["NoNewPrivs"] != "0" || r.Status["Seccomp"] != "0" {
			t.Errorf("NoNewPrivs %s, Seccomp %s", r.Status["NoNewPrivs"], r.Status["Seccomp"])
		}
		for call, want := range map[string]string{
			"io_uring_setup": "EFAULT", "ptrace attach to a child": "ok", "unshare user namespace": "ok", "clone user namespace": "ok",
			"ioctl TIOCSTI": "EBADF", "socket packet": "ok", "socket mptcp": "ok", "socket raw": "ok", "keyctl": "EINVAL|ENOSYS|EOPNOTSUPP", "fsopen": "EFAULT|EPERM", "clone3": "EFAULT",
		} {
			if !regexp.MustCompile("^(" + want + ")$").MatchString(r.Calls[call]) {
				t.Errorf("%s gives %q without a filter, want %s", call, r.Calls[call], want)
			}
		}
	})
}

// TestBeyondTheProfile asks for what the profile does not grant: creation fails and says which rule and what allows it.
func TestBeyondTheProfile(t *testing.T) {
	dir := box.TempDir(t)
	socket, renamed := filepath.Join(dir, "docker.sock"), filepath.Join(dir, "engine")
	for _, path := range []string{socket, renamed} {
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
	}
	for _, tc := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"privileged", []string{"--privileged"}, "(?i)capabilit|privileged|device"},
		{"capability", []string{"--cap-add", "SYS_ADMIN"}, "CAP_SYS_ADMIN"},
		{"network administration", []string{"--cap-add", "NET_ADMIN"}, "CAP_NET_ADMIN"},
		{"host network", []string{"--network", "host"}, "(?i)network"},
		{"host processes", []string{"--pid", "host"}, "(?i)pid"},
		{"host IPC", []string{"--ipc", "host"}, "(?i)ipc"},
		{"host UTS", []string{"--uts", "host"}, "(?i)uts"},
		{"root of the host", []string{"-v", "/:/host"}, "mount|/host"},
		{"root of the host, read only", []string{"-v", "/:/host:ro"}, "mount|/host"},
		{"/etc of the host", []string{"-v", "/etc:/host"}, "mount|/etc"},
		{"/proc of the host", []string{"-v", "/proc:/host"}, "mount|/proc"},
		{"/sys of the host", []string{"-v", "/sys:/host"}, "mount|/sys"},
		{"/run of the host", []string{"-v", "/var/run:/host"}, "mount|/run"},
		{"an engine's socket", []string{"-v", socket + ":/any/name"}, "socket"},
		{"an engine's socket of another name", []string{"-v", renamed + ":/var/run/docker.sock"}, "socket"},
		{"an engine's socket, read only", []string{"-v", socket + ":/var/run/docker.sock:ro"}, "socket"},
		{"a device of the host", []string{"--device", "/dev/loop-control"}, "(?i)device"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			runc, agentsafe := harness.Peers(t)
			args := func(p harness.Peer) []string {
				return append(append([]string{"run", "--rm", "--runtime", p.Name}, tc.flags...), image, "true")
			}
			if tc.name != "a device of the host" && tc.name != "privileged" { // these the test's own machine may not have
				if r := engine.Do(t, args(runc)...); r.Exit != 0 {
					t.Errorf("runc refuses it too, which proves nothing:\n%v", r)
				}
			}
			r := engine.Do(t, args(agentsafe)...)
			if r.Exit == 0 || !regexp.MustCompile(tc.want).MatchString(r.Stderr) || !strings.Contains(r.Stderr, "profile") {
				t.Errorf("want a refusal that names %q and the profile:\n%v", tc.want, r)
			}
		})
	}
	t.Run("seccomp=unconfined stays confined", func(t *testing.T) {
		_, agentsafe := harness.Peers(t)
		r := engine.Do(t, "run", "--rm", "--runtime", agentsafe.Name, "--security-opt", "seccomp=unconfined", image, "probe", "report")
		if r.Exit != 0 {
			return // refused: as good
		}
		if got := parseReport(t, r); got.Status["Seccomp"] != "2" || got.Calls["mount"] != "EPERM" {
			t.Errorf("Seccomp %s, mount %s", got.Status["Seccomp"], got.Calls["mount"])
		}
	})
	t.Run("a privileged exec", func(t *testing.T) {
		_, agentsafe := harness.Peers(t)
		name := engine.Up(t, agentsafe, image, "sleep", "1000")
		r := engine.Do(t, "exec", "--privileged", name, "grep", "CapEff", "/proc/self/status")
		if r.Exit == 0 && !strings.Contains(r.Stdout, agentCapabilities) {
			t.Errorf("more than the profile's capabilities:\n%v", r)
		}
	})
}
