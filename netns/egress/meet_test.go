package egress

import (
	"testing"
)

func TestMeet(t *testing.T) {
	for _, c := range [][3]string{
		{"example.com", "example.com:443", "example.com:443"},
		{"*.test:443,80", "a.test:80-90", "a.test:80"},
		{"*:443", "*.a.test:443", "*.a.test:443"},
		{"*.a.test:1-100,101-500", "b.a.test:50-443", "b.a.test:50-443"},
		{"https://a.test", "a.test:443", "https://a.test:443"},
		{"tcp://a.test:22", "ssh://a.test", "ssh://a.test:22"},
		{"GET,POST http://a.test/x", "POST,PUT http://a.test/x/y", "POST http://a.test:80/x/y"},
		{"http://a.test/x", "http://a.test", "http://a.test:80/x"},
		{"10.0.0.0/8:443", "10.1.0.0/16:1-1000", "10.1.0.0/16:443"},
		{"http://10.0.0.1", "10.0.0.0/8:80", "http://10.0.0.1:80"},
		{"[fd00::/8]:443", "[fd00::1]:443", "[fd00::1]:443"},
		{"a.test", "b.test", ""},
		{"ssh://a.test:443", "a.test", ""},
		{"a.test:80", "a.test:443", ""},
		{"10.0.0.0/8", "*:443", ""},
		{"http://a.test/x", "http://a.test/xy", ""},
		{"GET http://a.test", "PUT http://a.test", ""},
		{"*.a.test", "a.test", ""},
	} {
		a, errA := ParseRule(c[0])
		b, errB := ParseRule(c[1])
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		for _, pair := range [][2]Rule{{a, b}, {b, a}} {
			m, ok := pair[0].Meet(pair[1])
			if m.String() != c[2] || ok != (c[2] != "") {
				t.Errorf("%s and %s: %q, want %q", pair[0], pair[1], m, c[2])
			}
			if ok && (!a.Covers(m) || !b.Covers(m)) {
				t.Errorf("%s is not below %s and %s", m, a, b)
			}
		}
	}
}

// What a rule is spelled as means the same.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{"*.pypi.org:443", "ssh://github.com", "10.0.0.0/8:443", "[fd00::/8]:1-2,3", "GET,GET http://a.test:80/x", "tcp://10.0.0.0/8:1", "https://a.test/", "http://[::1]/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		c := r.Canonical()
		again, err := ParseRule(c.String())
		if err != nil {
			t.Fatalf("%q is spelled %q: %v", text, c, err)
		}
		if again.Canonical().String() != c.String() || !r.Covers(again) || !again.Covers(r) {
			t.Errorf("%q is spelled %q, which means something else", text, c)
		}
	})
}
