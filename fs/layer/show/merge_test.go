package show

import "testing"

func TestMerge(t *testing.T) {
	for _, c := range []struct{ base, a, b, want string }{
		{"1\n2\n3\n4\n5\n", "1\ntwo\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", "1\ntwo\n3\n4\nfive\n"},
		{"1\n2\n3\n", "0\n1\n2\n3\n", "1\n2\n3\n4\n", "0\n1\n2\n3\n4\n"},
		{"1\n2\n3\n4\n", "1\n4\n", "1\n2\n3\n4\n5\n", "1\n4\n5\n"},
		{"1\n2\n3\n", "1\ntwo\n3\n", "1\nTWO\n3\n", ""},
		{"1\n2\n3\n", "1\ntwo\n3\n", "1\ntwo\n3\n", "1\ntwo\n3\n"},
		{"1\n2\n3\n", "1\ntwo\n3\n", "1\n2\nthree\n", ""}, // neighbours
		{"1\n2\n3", "1\n2\n3\n", "one\n2\n3", "one\n2\n3\n"},
		{"1\n", "", "1\n2\n", ""},
		{"a\x00b\n", "c\n", "d\n", ""},
	} {
		got, ok := Merge([]byte(c.base), []byte(c.a), []byte(c.b))
		if ok != (c.want != "") || string(got) != c.want {
			t.Errorf("%q with %q and %q: %q %v, want %q", c.base, c.a, c.b, got, ok, c.want)
		}
		back, ok := Merge([]byte(c.base), []byte(c.b), []byte(c.a))
		if ok != (c.want != "") || string(back) != c.want {
			t.Errorf("%q with %q and %q: %q %v, want %q", c.base, c.b, c.a, back, ok, c.want)
		}
	}
}
