package denials

import (
	"bufio"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	at := time.UnixMilli(1364481363243)
	for _, c := range []struct {
		kind uint16
		text string
		want Message
		ok   bool
	}{
		{
			typeSeccomp, `audit(1364481363.243:24287): auid=4294967295 uid=1000 gid=1000 ses=1 pid=4711 comm="a b" exe="/bin/x" sig=0 arch=c000003e syscall=101 compat=0 ip=0x7f code=0x50000` + "\x00",
			Message{Time: at, PID: 4711, Program: "a b", Exe: "/bin/x", Arch: unix.AUDIT_ARCH_X86_64, Call: 101, syscall: true},
			true,
		},
		{
			typeSeccomp, `audit(1364481363.243:1): pid=1 comm=612022 exe="/x" arch=c000003e syscall=1 code=0x50026`,
			Message{Time: at, PID: 1, Program: `a "`, Exe: "/x", Arch: unix.AUDIT_ARCH_X86_64, Call: 1, syscall: true},
			true,
		},
		{typeSeccomp, `audit(1364481363.243:1): pid=1 comm="x" syscall=1 code=0x7ffc0000`, Message{}, false}, // logged, and allowed
		{
			typeLandlockDomain, `audit(1364481363.243:1): domain=195ba459b status=allocated mode=enforcing pid=300 uid=0 exe="/root/x" comm="x"`,
			Message{Time: at, PID: 300, Program: "x", Exe: "/root/x", Domain: "195ba459b", NewDomain: true},
			true,
		},
		{
			typeLandlockDomain, `audit(1364481363.243:1): domain=195ba459b status=deallocated denials=3`,
			Message{Time: at, Domain: "195ba459b"},
			true,
		},
		{
			typeLandlockAccess, `audit(1364481363.243:1): domain=195ba459b blockers=fs.write_file,fs.make_reg path="/usr/bin" dev="vda2" ino=351`,
			Message{Time: at, Domain: "195ba459b", Blockers: []string{"fs.write_file", "fs.make_reg"}, Path: "/usr/bin"},
			true,
		},
		{
			typeLandlockAccess, `audit(1364481363.243:1): domain=1 blockers=net.connect_tcp daddr=127.0.0.1 dest=80`,
			Message{Time: at, Domain: "1", Blockers: []string{"net.connect_tcp"}, Port: 80},
			true,
		},
		{1300, `audit(1364481363.243:1): pid=1`, Message{}, false},
		{typeSeccomp, `nonsense`, Message{}, false},
		{typeSeccomp, ``, Message{}, false},
	} {
		got, ok := Parse(c.kind, c.text)
		if ok != c.ok || ok && fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%d %s:\n%+v %v\n%+v %v", c.kind, c.text, got, ok, c.want, c.ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(uint16(typeSeccomp), `audit(1.2:3): pid=1 comm="x" code=0x50001`)
	f.Add(uint16(typeLandlockAccess), `audit(1.2:3): domain=1 blockers=fs.x path=4142`)
	f.Fuzz(func(_ *testing.T, kind uint16, text string) { Parse(kind, text) })
}

func TestLog_Bounds(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	l := NewLog(f)
	for range 1234 {
		l.Add(Denial{Kind: Syscall, What: "ptrace"})
	}
	for i := range 2 * MaxDistinct {
		l.Add(Denial{Kind: Network, What: strconv.Itoa(i) + "\n\x1b" + strings.Repeat("ä", 1000), Program: "\xff"})
	}
	l.Close()
	l.Add(Denial{What: "after the end"})
	lines := linesOf(t, name)
	if len(lines) != 4+MaxDistinct-1+1 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, want := range []int{0, 10, 100, 1000} {
		if lines[i].Count != want || lines[i].What != "ptrace" {
			t.Errorf("line %d: %+v", i, lines[i])
		}
	}
	if d := lines[4]; len(d.What) > maxText+3 || d.Program != "?" {
		t.Errorf("%+v", d)
	}
	if d := lines[len(lines)-1]; d.Kind != Note {
		t.Errorf("%+v", d)
	}
	var none *Log
	if none.Add(Denial{}) {
		t.Error("the nil log took something")
	}
	none.Close()
}

func linesOf(t *testing.T, name string) []Denial {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []Denial
	for s := bufio.NewScanner(f); s.Scan(); {
		d, err := ParseLine(s.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d)
	}
	return out
}

func TestFromGateway(t *testing.T) {
	for line, want := range map[string]string{
		`{"event":"connect","decision":"refuse","name":"a.test","port":443,"code":"no-rule","reason":"no rule"}`: `network a.test:443 network.allow network: {allow: ["a.test:443"]}`,
		`{"event":"dns","decision":"refuse","name":"a.test","code":"no-rule"}`:                                   `network a.test network.allow network: {allow: ["a.test:443"]}`,
		`{"event":"connect","decision":"refuse","address":"fd00::1","port":1,"code":"bad-address","rule":"x"}`:   `network [fd00::1]:1 x `,
		`{"event":"connect","decision":"allow","name":"a.test"}`:                                                 "",
		`{`: "",
	} {
		d, ok := FromGateway([]byte(line))
		if got := fmt.Sprintf("%s %s %s %s", d.Kind, d.What, d.Rule, d.Allow); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// The tables are what golang.org/x/sys says.
func TestCallTables(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatal(err)
	}
	for arch, table := range map[string]string{"amd64": callsAMD64, "arm64": callsARM64, "386": calls386} {
		file := filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+arch+".go")
		if _, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, seen := "", map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+= (\d+)`).FindAllStringSubmatch(string(data), -1) {
			if !seen[m[2]] {
				seen[m[2]] = true
				want += m[2] + " " + strings.ToLower(m[1]) + "\n"
			}
		}
		if table != want {
			t.Errorf("calls-%s.txt is not what %s says", arch, file)
		}
	}
	for arch, want := range map[uint32]string{unix.AUDIT_ARCH_X86_64: "ptrace", unix.AUDIT_ARCH_I386: "getuid (32-bit)", 1: "number 101 of architecture 0x1"} {
		number := 101
		if arch == unix.AUDIT_ARCH_I386 {
			number = 24
		}
		if got := CallName(arch, number); got != want {
			t.Errorf("%x: %s, want %s", arch, got, want)
		}
	}
}

// A refused call of this process is heard of.
func TestListen(t *testing.T) {
	r, err := Listen()
	if errors.Is(err, ErrUnsupported) {
		t.Skipf("probe audit: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), "AGENTSAFE_TEST_REFUSED=1")
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// Messages are sent by a thread of the kernel's, soon.
	timer := time.AfterFunc(10*time.Second, r.Close)
	defer timer.Stop()
	for {
		m, err := r.Read()
		if err != nil {
			t.Fatalf("no message about the child: %v", err)
		}
		if m.IsSyscall() && m.PID == child.Process.Pid && CallName(m.Arch, m.Call) == "swapoff" {
			return
		}
	}
}

// TestMain is also the child of TestListen: it refuses itself a call, and makes it.
func TestMain(m *testing.M) {
	if os.Getenv("AGENTSAFE_TEST_REFUSED") == "" {
		os.Exit(m.Run())
	}
	err := refuseSwapoff()
	if _, _, errno := unix.Syscall(unix.SYS_SWAPOFF, 0, 0, 0); err == nil && errno != unix.EPERM {
		err = errno
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
