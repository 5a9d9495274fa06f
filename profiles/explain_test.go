package profiles

import (
	"strings"
	"testing"
)

func TestExplainSyscall(t *testing.T) {
	p := agent()
	p.Syscalls = Syscalls{Packs: []Pack{PackDebug}, Allow: []string{"mbind"}, Deny: []string{"chroot"}}
	for name, want := range map[string][3]string{
		"read": {VerdictAllowed, "built-in list", ""}, "ptrace": {VerdictAllowed, "syscalls.packs debug", ""},
		"mbind": {VerdictAllowed, "syscalls.allow", ""}, "chroot": {VerdictRefused, "syscalls.deny", "taking it out"},
		"mount": {VerdictRefused, "built-in list of refused", "packs: [containers]"}, "bpf": {VerdictRefused, "built-in list of refused", "allow: [bpf]"},
		"socket": {VerdictDepends, "built-in rules on arguments", "allow: [socket]"}, "clone3": {VerdictDepends, "built-in rules", ""},
		"ioctl": {VerdictDepends, "built-in rules", ""}, "nosuchcall": {VerdictRefused, "built-in default", ""},
	} {
		a := ExplainSyscall(p, name, "amd64")
		if a.Verdict != want[0] || !strings.HasPrefix(a.Rule, want[1]) || !strings.Contains(a.Allow, want[2]) {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if a := ExplainSyscall(builtin(t, NameNone), "mount", "amd64"); a.Verdict != VerdictAllowed {
		t.Error(a)
	}
}

// The explanation of a call is what the filter does, for every call that is listed.
func TestExplainSyscall_AsTheFilterSays(t *testing.T) {
	for _, name := range BuiltinNames() {
		p := builtin(t, name)
		if p.Unrestricted {
			continue
		}
		f := agentFilter(p, "amd64")
		for i := range f.Rules {
			for _, call := range f.Rules[i].Names {
				a := ExplainSyscall(p, call, "amd64")
				switch conditional := callConditions(f, call) != ""; {
				case conditional && a.Verdict != VerdictDepends,
					!conditional && f.Rules[i].Action.Do == DoAllow && a.Verdict != VerdictAllowed,
					!conditional && f.Rules[i].Action.Do == DoErrno && a.Verdict != VerdictRefused:
					t.Errorf("%s, %s: %+v, but the filter says %s", name, call, a, f.Rules[i].Action)
				}
			}
		}
	}
}

func TestExplainPath(t *testing.T) {
	p := agent()
	p.Filesystem = Filesystem{Read: []string{"/usr"}, Execute: []string{"/usr/bin"}, Write: []string{"~/.cache"}, Hide: []string{"/usr/secret", "**/.env", "~/.ssh"}}
	for file, want := range map[string]string{
		"/usr/lib/x": "allowed refused refused", "/usr/bin/x": "allowed refused allowed", "$HOME/.cache/a": "allowed allowed refused",
		"/etc/x": "refused refused refused", "/usr/secret/a": "hidden", "/job/.env": "hidden", "/job/.env/below": "hidden", "~/.ssh/key": "hidden",
	} {
		var got []string
		for _, a := range ExplainPath(p, file) {
			got = append(got, a.Verdict)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s, want %s", file, s, want)
		}
	}
}

func TestExplainEnvAndHost(t *testing.T) {
	p := strict()
	p.Environment = Environment{Deny: []string{"*_DENIED"}, Set: map[string]string{"CI": "1"}}
	p.Trust.Waive = []string{"env:NPM_TOKEN"}
	for name, want := range map[string]string{"A_DENIED": VerdictRemoved, "CI": VerdictAllowed, "X_TOKEN": VerdictRefused, "NPM_TOKEN": VerdictAllowed, "LANG": VerdictAllowed} {
		if a := ExplainEnv(p, name); a.Verdict != want {
			t.Errorf("%s: %+v", name, a)
		}
	}
	g := agent()
	g.Network = Network{Mode: NetworkGateway, Allow: []string{"*.pypi.org:443", "ssh://github.com", "10.0.0.0/8:443"}, Deny: []string{"upload.pypi.org"}}
	for host, want := range map[string]string{
		"files.pypi.org": VerdictAllowed, "files.pypi.org:443": VerdictAllowed, "files.pypi.org:80": VerdictRefused, "upload.pypi.org:443": VerdictRefused,
		"github.com": VerdictAllowed, "example.com": VerdictRefused,
	} {
		if a := ExplainHost(g, host); a.Verdict != want {
			t.Errorf("%s: %+v", host, a)
		}
	}
	if a := ExplainHost(strict(), "example.com"); a.Verdict != VerdictRefused || a.Rule != "network.mode none" {
		t.Error(a)
	}
	build := builtin(t, "build")
	if a := ExplainHost(build, "example.com"); a.Verdict != VerdictRefused {
		t.Error(a)
	}
	if a := ExplainHost(build, "files.pythonhosted.org:443"); a.Verdict != VerdictAllowed || !strings.HasPrefix(a.Rule, "network.ruleSets pypi (") {
		t.Error(a)
	}
}
