package vm

import "testing"

func TestParse(t *testing.T) {
	got := parse("6.1.0\n" + sectionMark + "0 runtime/cgroup\n=== RUN   TestA\n=== RUN   TestA/sub\n    a_test.go:1: bad\n--- FAIL: TestA (0.10s)\n    --- FAIL: TestA/sub (0.10s)\n" +
		"=== RUN   TestB\n--- PASS: TestB (0.00s)\n=== RUN   TestC\n    c_test.go:3: probe systemd: absent\n--- SKIP: TestC (0.00s)\n=== RUN   TestD\npanic: end\n=== EXIT 1\n" +
		sectionMark + "1 netns\nPASS\n=== EXIT 0\n" + sectionMark + "end\n")
	if len(got) != 2 || got[0].name != "runtime/cgroup" || got[0].exit != "1" || got[1].exit != "0" || got[1].rest != "PASS\n" {
		t.Fatalf("sections: %+v", got)
	}
	for i, want := range []outcome{
		{"TestA", "FAIL", "    a_test.go:1: bad\n    --- FAIL: TestA/sub (0.10s)\n"},
		{"TestB", "PASS", ""},
		{"TestC", "SKIP", "    c_test.go:3: probe systemd: absent\n"},
		{"TestD", "FAIL", "no verdict\npanic: end\n"},
	} {
		if got[0].tests[i] != want {
			t.Errorf("test %d: %+v, want %+v", i, got[0].tests[i], want)
		}
	}
}
