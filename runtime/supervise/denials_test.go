package supervise

import (
	"fmt"
	"os"
	"testing"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// The kernel tells whose a domain is after the first refusal that it logs of it: that one waits, and is not lost.
func TestDenialWatch_FirstOfADomain(t *testing.T) {
	p, err := profiles.Builtin("lint")
	if err != nil {
		t.Fatal(err)
	}
	own, err := cgroupLines(os.Getpid())
	if err != nil || len(own) == 0 {
		t.Skipf("probe cgroup: this process is in no group of its own: %v", err)
	}
	w := &denialWatch{domains: map[string]string{}, profile: p, cgroups: own}
	refused := func(domain, path string) *denials.Message {
		return &denials.Message{Domain: domain, Blockers: []string{"fs.write_file"}, Path: path}
	}
	allocated := func(domain string, pid int) *denials.Message {
		return &denials.Message{Domain: domain, PID: pid, NewDomain: true}
	}
	const nobody = 1 << 30
	for _, step := range []struct {
		name string
		m    *denials.Message
		want []string
	}{
		{"before anybody knows whose it is", refused("a", "/first"), nil},
		{"of another task", refused("b", "/other"), nil},
		{"the other task's", allocated("b", nobody), nil},
		{"ours", allocated("a", os.Getpid()), []string{"write /first"}},
		{"known by now", refused("a", "/second"), []string{"write /second"}},
		{"the other task's, again", refused("b", "/other"), nil},
	} {
		var got []string
		list, _ := w.explain(step.m)
		for _, d := range list {
			got = append(got, d.What)
		}
		if fmt.Sprint(got) != fmt.Sprint(step.want) {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
	// Domains that were there before wait in vain, and don't take all memory.
	for i := range 1000 {
		for range 100 {
			w.explain(refused(fmt.Sprintf("old%d", i), "/x"))
		}
	}
	if n := len(w.waiting); n > 64 {
		t.Errorf("%d domains wait", n)
	}
}
