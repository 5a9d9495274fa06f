package egress

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/netns"
)

func TestParseHost(t *testing.T) {
	for in, want := range map[string]string{
		"example.com": "example.com", "EXAMPLE.Com.": "example.com", "_dns.x-y.test": "_dns.x-y.test", "xn--bcher-kva.example": "xn--bcher-kva.example",
		"1.example": "1.example", "a": "a",
		"": "", ".": "", "a..b": "", "example.com..": "", "-a.test": "", "a-.test": "", "ä.test": "", "a b.test": "", "a\x00.test": "", "a/b": "", "a:1": "",
		"127.0.0.1": "", "127.1": "", "2130706433": "", "0x7f.0x1": "", "0177.0.0.1": "", "x.0x": "", "[::1]": "", "::1": "", "a@b": "", "a%2eb": "",
		strings.Repeat("a", 64) + ".test": "", strings.Repeat("a.", 127) + "b": "",
	} {
		got, err := ParseHost(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("ParseHost(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestParseRule_Refuses(t *testing.T) {
	for _, text := range []string{
		"", "*", "*.", "*.*.test:443", "a*.test", "example.com:", "example.com:0", "example.com:65536", "example.com:90-80", "example.com:443,",
		"ftp://example.com", "tcp://example.com", "tls://example.com/path", "GET tls://example.com", "https://10.0.0.1/x", "GET https://10.0.0.0/8", "https://example.com/a%2fb", "http://example.com/a?b", "http://example.com/../x", "get http://example.com",
		"GET example.com", "0.0.0.0/0:443", "::/0", "[::/0]:443", "10.0.0.1/8:443", "[::ffff:10.0.0.1]:443", "fe80::1%eth0", "127.1:443", "example.com.",
		"GET http://10.0.0.0/8", "ssh://", "unix:///run/x.sock", "example.com:+443", "example.com:0443", "user@example.com", "[10.0.0.1]:443", "*.10.0.0.1",
		"ssh://git.test SHA256:short", "ssh://git.test MD5:aa", "ssh://git.test ", "https://git.test SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU",
	} {
		if r, err := ParseRule(text); err == nil && text != "*" {
			t.Errorf("ParseRule(%q) = %+v, want an error", text, r)
		}
	}
}

func compile(t testing.TB, c Config) *Policy {
	t.Helper()
	p, err := Compile(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConnect(t *testing.T) {
	p := compile(t, Config{
		Allow: []string{
			"example.com", "*.wild.test:443", "http://plain.test/pool", "GET,HEAD http://methods.test", "ssh://git.test", "tcp://db.test:5432",
			"range.test:8000-8099,9000", "*.denied.test",
		},
		Deny: []string{"secret.denied.test:1-65535", "*.wild.test:80"}, RuleSets: []string{"pypi"},
	})
	for _, tc := range []struct {
		host  string
		port  uint16
		proto Protocol
		code  Code
	}{
		{"example.com", 443, TLS, ""},
		{"Example.COM.", 443, TLS, ""},
		{"example.com", 443, HTTP, ""},
		{"example.com", 443, SSH, WrongProtocol},
		{"example.com", 443, Raw, WrongProtocol},
		{"example.com", 80, HTTP, NoRule},
		{"www.example.com", 443, TLS, NoRule},
		{"wild.test", 443, TLS, NoRule},
		{"a.wild.test", 443, TLS, ""},
		{"a.b.wild.test", 443, "", ""},
		{"evilwild.test", 443, TLS, NoRule},
		{".wild.test", 443, TLS, BadName},
		{"git.test", 22, SSH, ""},
		{"git.test", 22, TLS, WrongProtocol},
		{"db.test", 5432, Raw, ""},
		{"db.test", 5432, TLS, ""},
		{"range.test", 8050, TLS, ""},
		{"range.test", 8100, TLS, NoRule},
		{"range.test", 9000, TLS, ""},
		{"x.denied.test", 443, TLS, ""},
		{"secret.denied.test", 443, TLS, DeniedByRule},
		{"files.pythonhosted.org", 443, TLS, ""},
		{"127.0.0.1", 443, TLS, BadName},
	} {
		if d := p.Connect(tc.host, tc.port, tc.proto); d.Code != tc.code || d.Allowed != (tc.code == "") {
			t.Errorf("%s:%d %s: %+v, want code %q", tc.host, tc.port, tc.proto, d, tc.code)
		}
	}
	if d := p.Resolves("secret.denied.test"); d.Code != DeniedByRule {
		t.Errorf("a name that is denied on all ports resolves: %+v", d)
	}
	for _, tc := range []struct {
		host, method, path string
		allowed            bool
	}{
		{"plain.test", "GET", "/pool", true},
		{"plain.test", "GET", "/pool/x", true},
		{"plain.test", "GET", "/poolside", false},
		{"plain.test", "GET", "/pool/../etc", false},
		{"plain.test", "GET", "/pool/%2e%2e/etc", false},
		{"plain.test", "GET", "/pool//x", false},
		{"methods.test", "GET", "/", true},
		{"methods.test", "POST", "/", false},
	} {
		if d := p.Request(tc.host, 80, HTTP, tc.method, tc.path); d.Allowed != tc.allowed {
			t.Errorf("%s %s%s: %+v", tc.method, tc.host, tc.path, d)
		}
	}
}

func TestEmptyPolicyAllowsNothing(t *testing.T) {
	for _, p := range []*Policy{{}, compile(t, Config{})} {
		for _, d := range []Decision{
			p.Resolves("example.com"), p.Connect("example.com", 443, TLS), p.Connect("example.com", 443, ""), p.Request("example.com", 80, HTTP, "GET", "/"),
			p.ConnectAddress(netip.MustParseAddrPort("93.184.216.34:443"), ""),
		} {
			if d.Allowed || d.Reason == "" || d.Code == "" {
				t.Errorf("%+v", d)
			}
		}
	}
}

func TestAddress(t *testing.T) {
	p := compile(t, Config{
		Allow: []string{"10.0.0.0/8:443", "[fd00:1::/64]:443", "169.254.0.0/16:80"}, Deny: []string{"10.66.0.0/16:1-65535"},
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24"), netip.MustParsePrefix("169.254.170.2/32"), netip.MustParsePrefix("127.0.0.0/8")},
	})
	for addr, allowed := range map[string]bool{
		"93.184.216.34": true, "2606:2800::1": true, "192.168.7.9": true, "169.254.170.2": true,
		"192.168.8.9": false, "10.1.1.1": false, "169.254.169.254": false, "127.0.0.1": false, "::1": false, "fd00:ec2::254": false, "100.64.0.1": false,
		"224.0.0.1": false, "::ffff:10.1.1.1": false, "::ffff:169.254.169.254": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b::5db8:d822": true,
		"0.0.0.0": false, "::": false, "2002:a00:1::1": false, "fe80::1": false, "255.255.255.255": false, "198.18.0.1": false, "::10.1.1.1": false,
	} {
		if d := p.Address(netip.MustParseAddr(addr), 443); d.Allowed != allowed {
			t.Errorf("%s: %+v", addr, d)
		}
	}
	for to, allowed := range map[string]bool{
		"10.1.1.1:443": true, "10.1.1.1:80": false, "10.66.1.1:443": false, "[fd00:1::5]:443": true, "[fd00:2::5]:443": false,
		"169.254.169.254:80": false, "93.184.216.34:443": false, "[::ffff:10.1.1.1]:443": true,
	} {
		if d := p.ConnectAddress(netip.MustParseAddrPort(to), TLS); d.Allowed != allowed {
			t.Errorf("%s: %+v", to, d)
		}
	}
}

func TestCovers(t *testing.T) {
	p := compile(t, Config{Allow: []string{"*.test:443,8000-8999", "http://plain.example/pool", "10.0.0.0/8:443"}, Deny: []string{"secret.test:1-65535"}})
	for text, want := range map[string]bool{
		"a.test": true, "*.a.test:443": true, "https://a.test:8001": true, "a.test:80": false, "*:443": false, "test:443": false, "secret.test": false,
		"*.test": false, "ssh://a.test:443": false, "tcp://a.test:443": false, "http://plain.example/pool/x": true, "http://plain.example": false,
		"10.1.0.0/16:443": true, "11.0.0.0/8:443": false, "10.0.0.0/7:443": false,
	} {
		r, err := ParseRule(text)
		if err != nil {
			if text != "10.0.0.0/7:443" { // host bits
				t.Error(err)
			}
			continue
		}
		if got := p.Covers(r); got != want {
			t.Errorf("covers %s: %v, want %v", text, got, want)
		}
	}
}

// A pod's policy allows what each of its containers' does, and says whose refusal it is.
func TestAnd(t *testing.T) {
	a := compile(t, Config{Allow: []string{"*.test", "a.example", "http://w.example", "10.0.0.0/8:443"}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	b := compile(t, Config{Allow: []string{"x.test", "*.y.test", "tcp://a.example:443", "GET http://w.example", "10.1.0.0/16:443"}, Deny: []string{"z.y.test:1-65535"}})
	p := a.And(b)
	for _, tc := range []struct {
		host  string
		port  uint16
		proto Protocol
		code  Code
	}{
		{"x.test", 443, TLS, ""},
		{"q.y.test", 443, TLS, ""},
		{"z.y.test", 443, TLS, DeniedByRule},
		{"other.test", 443, TLS, NoRule},
		{"a.example", 443, TLS, ""},
		{"a.example", 443, Raw, WrongProtocol},
		{"w.example", 80, HTTP, ""},
	} {
		if d := p.Connect(tc.host, tc.port, tc.proto); d.Code != tc.code {
			t.Errorf("%s:%d %s: %+v", tc.host, tc.port, tc.proto, d)
		}
	}
	if d := p.Resolves("x.test"); !d.Allowed || d.Wildcard {
		t.Errorf("a name that one of them spells out: %+v", d)
	}
	if d := p.Resolves("q.y.test"); !d.Allowed || !d.Wildcard {
		t.Errorf("a name below wildcards: %+v", d)
	}
	if p.Request("w.example", 80, HTTP, "POST", "/").Allowed || !p.Request("w.example", 80, HTTP, "GET", "/").Allowed {
		t.Error("methods are not those of both")
	}
	if p.ConnectAddress(netip.MustParseAddrPort("10.2.0.1:443"), TLS).Allowed || !p.ConnectAddress(netip.MustParseAddrPort("10.1.0.1:443"), TLS).Allowed {
		t.Error("ranges are not those of both")
	}
	if p.Address(netip.MustParseAddr("10.1.0.1"), 443).Allowed {
		t.Error("a private address that one of them names passes")
	}
	if p.Destination("z.y.test", 443).Allowed || a.And(&Policy{}).Resolves("x.test").Allowed {
		t.Error("a refusal of one of them is lost")
	}
}

func TestHostKeys(t *testing.T) {
	const one, two = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU", "SHA256:n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg"
	p := compile(t, Config{Allow: []string{"ssh://git.test " + one + "," + two, "ssh://any.test"}})
	if d := p.Connect("git.test", 22, SSH); !d.Allowed || !slices.Equal(d.HostKeys, []string{one, two}) {
		t.Errorf("%+v", d)
	}
	if d := p.Connect("any.test", 22, SSH); !d.Allowed || d.HostKeys != nil {
		t.Errorf("%+v", d)
	}
	both := p.And(compile(t, Config{Allow: []string{"ssh://git.test " + two, "ssh://any.test " + one}}))
	if d := both.Connect("git.test", 22, SSH); !d.Allowed || !slices.Equal(d.HostKeys, []string{two}) {
		t.Errorf("of both: %+v", d)
	}
	if d := both.Connect("any.test", 22, SSH); !d.Allowed || !slices.Equal(d.HostKeys, []string{one}) {
		t.Errorf("of both: %+v", d)
	}
	for pair, want := range map[[2]string]string{
		{"ssh://git.test " + two + "," + one, "ssh://*.test " + two}: "ssh://git.test:22 " + two, {"tcp://git.test:22", "ssh://git.test " + one}: "ssh://git.test:22 " + one,
		{"ssh://git.test " + one, "ssh://git.test " + two}: "",
	} {
		a, err := ParseRule(pair[0])
		b, berr := ParseRule(pair[1])
		if r, _ := a.Meet(b); err != nil || berr != nil || r.String() != want {
			t.Errorf("%v meet at %q, want %q", pair, r, want)
		}
	}
	for text, want := range map[string]bool{"ssh://git.test": false, "ssh://git.test " + one: true, "ssh://any.test " + two: true} {
		r, err := ParseRule(text)
		if err != nil || p.Covers(r) != want {
			t.Errorf("covers %s: %v, %v", text, !want, err)
		}
	}
}

func TestRuleSetsCompile(t *testing.T) {
	compile(t, Config{RuleSets: RuleSets()})
	if _, err := Compile(Config{RuleSets: []string{"nonesuch"}}); err == nil {
		t.Error("an unknown rule set compiles")
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"example.com", "127.1", "0x7f.1", "a..b", "EXAMPLE.com."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, err := ParseHost(s)
		if err != nil {
			return
		}
		if again, err := ParseHost(host); err != nil || again != host {
			t.Errorf("%q: %q is not canonical: %q, %v", s, host, again, err)
		}
		if _, err := netip.ParseAddr(host); err == nil {
			t.Errorf("%q passes for a name and is an address", s)
		}
	})
}

// What a rule allows is named by the rule: a name that differs from it in anything but case is refused.
func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"*.pypi.org:443", "ssh://github.com", "10.0.0.0/8:443", "[fd00::/8]:1-2", "GET http://a.test:80/x", "tcp://a.test:1"} {
		f.Add(s, "files.pypi.org")
	}
	f.Fuzz(func(t *testing.T, text, host string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		if r.matchesName(host) && !r.wildcard && host != r.host {
			t.Errorf("%q matches %q", text, host)
		}
		if !r.Covers(r) {
			t.Errorf("%q does not cover itself", text)
		}
		p := compile(t, Config{Allow: []string{text}})
		if d := p.Connect(host, 443, TLS); d.Allowed && !strings.HasSuffix(strings.ToLower(strings.TrimSuffix(host, ".")), strings.TrimPrefix(r.host, "*.")) {
			t.Errorf("%q allows %q", text, host)
		}
	})
}

func FuzzAddress(f *testing.F) {
	f.Add([]byte{169, 254, 169, 254})
	f.Add([]byte{0x20, 1, 15: 1})
	p := compile(f, Config{})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		if p.Address(a, 443).Allowed && (a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() || netns.ClassOf(a) != netns.ClassPublic) {
			t.Errorf("%s passes", a)
		}
	})
}
