package profiles

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestPlanProcess_Capabilities(t *testing.T) {
	all := func(names ...string) *specs.LinuxCapabilities {
		return &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
	}
	for _, c := range []struct {
		name string
		in   *specs.LinuxCapabilities
		want *specs.LinuxCapabilities
		note string
	}{
		{"none at all", nil, nil, ""},
		{"engine default is cut", all("CAP_CHOWN", "CAP_NET_RAW", "CAP_MKNOD", "CAP_AUDIT_WRITE"), all("CAP_CHOWN"), "cut CAP_AUDIT_WRITE CAP_MKNOD CAP_NET_RAW"},
		{"lower case", all("cap_chown"), all("CAP_CHOWN"), ""},
		{"never more than asked for", all("CAP_KILL"), all("CAP_KILL"), ""},
		{
			"ambient without inheritable", &specs.LinuxCapabilities{Permitted: []string{"CAP_KILL"}, Ambient: []string{"CAP_KILL"}},
			&specs.LinuxCapabilities{Permitted: []string{"CAP_KILL"}}, "",
		},
		{
			"ambient of a user", &specs.LinuxCapabilities{
				Permitted: []string{"CAP_KILL", "CAP_CHOWN"}, Inheritable: []string{"CAP_KILL", "CAP_CHOWN"}, Ambient: []string{"CAP_KILL"},
			},
			&specs.LinuxCapabilities{
				Permitted: []string{"CAP_KILL", "CAP_CHOWN"}, Inheritable: []string{"CAP_KILL"}, Ambient: []string{"CAP_KILL"},
			}, "",
		},
		{
			"ambient of what is cut", &specs.LinuxCapabilities{
				Permitted: []string{"CAP_NET_RAW"}, Inheritable: []string{"CAP_NET_RAW"}, Ambient: []string{"CAP_NET_RAW"},
			},
			&specs.LinuxCapabilities{}, "cut CAP_NET_RAW",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, notes, err := PlanProcess(&specs.Process{Capabilities: c.in, NoNewPrivileges: true}, agent())
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(out.Capabilities, c.want) {
				t.Errorf("got %+v, want %+v", out.Capabilities, c.want)
			}
			got := ""
			if len(notes) > 0 {
				got = notes[0].Text
			}
			if got != c.note {
				t.Errorf("note %q, want %q", got, c.note)
			}
		})
	}
}

// Inheritable capabilities are what CVE-2022-29162 was about: engines before it set them to the bounding set.
func TestAttack_CVE_2022_29162_Inheritable(t *testing.T) {
	set := []string{"CAP_CHOWN", "CAP_SETUID"}
	in := &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: set, Effective: set, Permitted: set, Inheritable: set}}
	out, _, err := PlanProcess(in, agent())
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Capabilities.Inheritable) != 0 {
		t.Errorf("inheritable %v", out.Capabilities.Inheritable)
	}
	if len(in.Capabilities.Inheritable) != 2 {
		t.Error("the input changed")
	}
}

func TestPlanProcess_Refused(t *testing.T) {
	for _, c := range []struct {
		name    string
		process specs.Process
		what    string
		allow   string
	}{
		{"added", specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_SYS_PTRACE"}}}, "CAP_SYS_PTRACE", "capabilities: [..., CAP_SYS_PTRACE]"},
		{"only effective", specs.Process{Capabilities: &specs.LinuxCapabilities{Effective: []string{"CAP_SYS_ADMIN"}}}, "CAP_SYS_ADMIN", "CAP_SYS_ADMIN"},
		{"only ambient", specs.Process{Capabilities: &specs.LinuxCapabilities{Ambient: []string{"CAP_BPF"}}}, "CAP_BPF", "CAP_BPF"},
		{"unheard of", specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_TOMORROW"}}}, "CAP_TOMORROW", ""},
		{"real time", specs.Process{Scheduler: &specs.Scheduler{Policy: specs.SchedFIFO}}, "SCHED_FIFO", "CAP_SYS_NICE"},
		{"real-time I/O", specs.Process{IOPriority: &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_RT}}, "IOPRIO_CLASS_RT", "CAP_SYS_NICE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := PlanProcess(&c.process, agent())
			wantRefused(t, err, c.what, c.allow)
			out, _, err := PlanProcess(&c.process, builtin(t, NameNone))
			if err != nil || !reflect.DeepEqual(*out, c.process) {
				t.Errorf("profile none: %v, %v", out, err)
			}
		})
	}
}

func TestPlanProcess_NoNewPrivs(t *testing.T) {
	for _, c := range []struct {
		packs []Pack
		in    bool
		want  bool
	}{{nil, false, true}, {nil, true, true}, {[]Pack{PackDebug}, false, true}, {[]Pack{PackSudo}, false, false}, {[]Pack{PackSudo}, true, true}} {
		p := agent()
		p.Syscalls.Packs = c.packs
		out, notes, err := PlanProcess(&specs.Process{NoNewPrivileges: c.in}, p)
		if err != nil {
			t.Fatal(err)
		}
		if out.NoNewPrivileges != c.want {
			t.Errorf("packs %v, asked for %v: got %v", c.packs, c.in, out.NoNewPrivileges)
		}
		if noted := len(notes) == 1 && strings.Contains(notes[0].String(), "noNewPrivileges"); noted != (c.in != c.want) {
			t.Errorf("packs %v, asked for %v: notes %v", c.packs, c.in, notes)
		}
	}
}

// TestPlanProcess_Root: an exec by root in another user's container names the bounding set alone. It has what root would
// have without no_new_privs, unless the engine asks for that itself; somebody else has nothing.
func TestPlanProcess_Root(t *testing.T) {
	few := []string{"CAP_CHOWN", "CAP_SETUID"}
	for _, c := range []struct {
		name string
		in   specs.Process
		want []string
	}{
		{"root", specs.Process{}, few},
		{"root, no_new_privs asked for", specs.Process{NoNewPrivileges: true}, nil},
		{"somebody else", specs.Process{User: specs.User{UID: 1000}}, nil},
	} {
		c.in.Capabilities = &specs.LinuxCapabilities{Bounding: append([]string{"CAP_NET_RAW"}, few...)}
		out, _, err := PlanProcess(&c.in, agent())
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Capabilities; !slices.Equal(got.Effective, c.want) || !slices.Equal(got.Permitted, c.want) || !slices.Equal(got.Bounding, few) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
