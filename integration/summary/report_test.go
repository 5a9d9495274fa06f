package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	const (
		pass   = `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" + `{"Action":"pass","Package":"p"}` + "\n"
		fail   = `{"Action":"fail","Package":"p","Test":"TestB/x"}` + "\n" + `{"Action":"fail","Package":"p","Test":"TestB"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n"
		probe  = `{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: probe cgroup2: absent\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"TestC"}` + "\n"
		hidden = `{"Action":"output","Package":"p","Test":"TestD","Output":"    d_test.go:9: flaky\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"TestD"}` + "\n"
		broken = `{"Action":"fail","Package":"q"}` + "\n"
	)
	for _, tc := range []struct{ name, in, closing, err string }{
		{"all pass", pass, "1 passed, 0 failed, 0 skipped", ""},
		{"a failed subtest counts once", pass + fail, "1 passed, 1 failed, 0 skipped", "1 tests failed"},
		{"a skip that names its probe", pass + probe, "1 passed, 0 failed, 1 skipped", ""},
		{"a skip that hides", pass + hidden, "1 passed, 0 failed, 1 skipped", "without naming a probe"},
		{"a package that fails by itself", pass + broken, "1 passed, 1 failed, 0 skipped", "1 tests failed"},
		{"nothing ran", "", "0 passed, 0 failed, 0 skipped", "no test ran"},
		{"lines that are no events", "go: hello\n" + pass, "go: hello", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(strings.NewReader(tc.in), &out)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if !strings.Contains(out.String(), tc.closing) {
				t.Errorf("output %q lacks %q", out.String(), tc.closing)
			}
		})
	}
}
