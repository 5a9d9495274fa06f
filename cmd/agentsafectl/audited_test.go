package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Messages to the kernel's audit subsystem. Source: linux/audit.h.
const (
	auditGet     = 1000
	auditSet     = 1001
	auditAddRule = 1011

	auditStatusBytes   = 40   // struct audit_status
	auditRuleBytes     = 1040 // struct audit_rule_data without text
	auditStatusEnabled = 1    // bit of mask: the field enabled counts
	auditFilterTask    = 1    // with the action 0: never
)

// auditing is a socket to the kernel's audit subsystem.
type auditing struct {
	t  *testing.T
	fd int
}

// request sends a message and returns the payload of its answer, or of the status that the answer is.
func (a *auditing) request(kind uint16, flags uint16, payload []byte) []byte {
	a.t.Helper()
	b := make([]byte, unix.NLMSG_HDRLEN+len(payload))
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	copy(b[unix.NLMSG_HDRLEN:], payload)
	if err := unix.Sendto(a.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		a.t.Fatal(err)
	}
	buf := make([]byte, 8192)
	for {
		n, _, err := unix.Recvfrom(a.fd, buf, 0)
		if err != nil || n < unix.NLMSG_HDRLEN {
			a.t.Fatalf("audit message %d: %d bytes, %v", kind, n, err)
		}
		answer, body := binary.NativeEndian.Uint16(buf[4:]), buf[unix.NLMSG_HDRLEN:n]
		switch {
		case answer == unix.NLMSG_ERROR && len(body) >= 4:
			if errno := -int32(binary.NativeEndian.Uint32(body)); errno != 0 && unix.Errno(errno) != unix.EEXIST {
				a.t.Fatalf("audit message %d: %v", kind, unix.Errno(errno))
			}
			if flags&unix.NLM_F_ACK != 0 {
				return nil
			}
		case answer == kind:
			return body
		}
	}
}

func (a *auditing) enabled() bool {
	body := a.request(auditGet, 0, nil)
	return len(body) >= 8 && binary.NativeEndian.Uint32(body[4:]) != 0
}

func (a *auditing) enable(v uint32) {
	status := make([]byte, auditStatusBytes)
	binary.NativeEndian.PutUint32(status, auditStatusEnabled)
	binary.NativeEndian.PutUint32(status[4:], v)
	a.request(auditSet, unix.NLM_F_ACK, status)
}

// audited wants auditing to be enabled on this host: by its administrator, or, where AGENTSAFE_TEST_AUDIT says that it
// may, by this test until it ends. The rule never,task comes first and stays, since from the first time on the kernel
// would otherwise give each new task an audit context, whether auditing is enabled or not, until the next boot.
func audited(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_AUDIT)
	if err != nil {
		t.Skipf("probe audit: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	a := &auditing{t, fd}
	if a.enabled() {
		return
	}
	if os.Getenv("AGENTSAFE_TEST_AUDIT") == "" {
		t.Skip("probe audit: disabled on this host, and AGENTSAFE_TEST_AUDIT does not say that a test may enable it")
	}
	rule := make([]byte, auditRuleBytes)
	binary.NativeEndian.PutUint32(rule, auditFilterTask)
	a.request(auditAddRule, unix.NLM_F_ACK, rule)
	t.Cleanup(func() { a.enable(0) }) // before the socket is closed
	a.enable(1)
}

const auditedProfile = `apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: audited}
extends: lint
filesystem: {read: [/usr, /lib, /lib64, /bin, /etc, $WORKSPACE], execute: [/usr, /lib, /lib64, /bin]}
network: {connectPorts: [], listenPorts: [8000]}
evidence: {denials: kernel}
`

// auditedJob provokes refusals until they are listed, for the kernel may lose a message; and one of a sandbox that it
// makes for itself, which is none of the profile's.
const auditedJob = `import ctypes, os, socket, time
def quiet(do):
    try: do()
    except OSError: pass
def denials(): return open(os.environ["AGENTSAFE_DENIALS"]).read()
def listed(text, provoke):
    until = time.time() + 30
    while text not in denials():
        if time.time() > until: return print("missing", text)
        quiet(provoke); time.sleep(0.05)
    print("listed", text)
listed("read /var/log", lambda: os.listdir("/var/log"))
listed("write /run", lambda: open("/run/new", "w"))
listed("connect TCP port 81", lambda: socket.create_connection(("127.0.0.1", 81)))
listed("listen TCP port 82", lambda: socket.create_server(("127.0.0.1", 82)))
done, wait = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.close(wait[1])
    call = ctypes.CDLL(None).syscall
    own = call(444, (ctypes.c_uint64 * 1)(1 << 3), 8, 0)
    if own < 0 or call(446, own, 0) != 0: os._exit(1)
    try: os.listdir("/usr/lib")
    except PermissionError: os.write(done[1], b"x"); os.read(wait[0], 1); os._exit(0)
    os._exit(2)
os.close(done[1])
os.read(done[0], 1)
listed("read /var/cache", lambda: os.listdir("/var/cache"))
os.close(wait[1]) # the child lived until its refusal had to be listed, so that it could be told whose it was
print("own sandbox", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("silence of the own sandbox:", "/usr/lib" not in denials())
print("ready", flush=True)
try: input()
except EOFError: pass
`

// What Landlock refuses reaches the task's list and the administrator's, by the kernel's own audit records: files,
// ports, and whose rule it was.
func TestDenials_Landlock(t *testing.T) {
	canListen(t)
	const abiAudit = 7
	if abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 || abi < abiAudit {
		t.Skipf("probe landlock: ABI %d, audit records need %d (%v)", abi, abiAudit, errno)
	}
	b := newBench(t)
	audited(t)
	for name, text := range map[string]string{"audited.yaml": auditedProfile, "job.py": auditedJob} {
		if err := os.WriteFile(filepath.Join(b.workspace, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := b.command("-q", "--id", "audited-task", "--profile", "./audited.yaml", "--", "/usr/bin/python3", "-u", "job.py")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	waitFor(t, "the task", func() bool { return strings.Contains(out.String(), "ready\n") || len(ended) > 0 })
	table, err := b.in("denials", "audited-task")
	in.Close()
	if werr := <-ended; werr != nil {
		t.Error(werr)
	}
	want := "listed read /var/log\nlisted write /run\nlisted connect TCP port 81\nlisted listen TCP port 82\n" +
		"listed read /var/cache\nown sandbox 0\nsilence of the own sandbox: True\nready\n"
	if out.String() != want {
		t.Errorf("inside, want\n%s\ngot\n%s", want, out.String())
	}
	for _, words := range []string{"filesystem.read", "filesystem: {read: [..., /var]}", "filesystem.write", "network.connectPorts", "network: {connectPorts: [..., 81]}", "network.listenPorts"} {
		if err != nil || !strings.Contains(table, words) {
			t.Errorf("outside, no %q: %v\n%s", words, err, table)
		}
	}
}
