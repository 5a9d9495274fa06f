package network

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestOrigin: the log says which command of a container made a connection or asked for a name, allowed or refused, also if
// its descendants did, in a session of their own, and if they run side by side with others.
func TestOrigin(t *testing.T) {
	// As on a hybrid host, which tests hide otherwise; where v2 is all there is, it is mounted already.
	box.MustRun(t, "sh", "-ec", "grep -q ' /sys/fs/cgroup cgroup2 ' /proc/mounts || mount -t cgroup2 none /sys/fs/cgroup/unified")
	t.Cleanup(func() { box.MustRun(t, "sh", "-c", "umount /sys/fs/cgroup/unified 2>/dev/null || true") })
	administer(t, profileFile(t, rules("http://example.com", "tcp://git.test:5432")+"evidence: {mode: \"on\"}\n"))
	_, peer := harness.Peers(t)
	d := box.Bare(t, peer)
	b := d.Up(t, func(s *specs.Spec) {
		s.Process.Args = []string{"sh", "-c", "wget -qO- http://first.test/ || nc git.test 5432 </dev/null; exec sleep 1000"}
	})
	done := make(chan harness.Result, 2)
	for _, name := range []string{"one", "two"} {
		go func() {
			done <- d.Do(t, "exec", b.ID, "sh", "-c", "cat /proc/self/cgroup >/tmp/"+name+"; for i in 1 2 3; do wget -qO- http://example.com/"+name+
				"; wget -qO- http://"+name+".test/; setsid nc git.test 5432 </dev/null; nc -w 1 "+public4+" 5432 </dev/null; done; true")
		}()
	}
	for range 2 {
		if r := <-done; r.Exit != 0 {
			t.Fatal(r)
		}
	}
	type line struct{ Event, Decision, Name, Path, Container, Exec, Branch string }
	counts := map[string]map[string]int{}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		clear(counts)
		f, err := os.Open(filepath.Join(d.Root, b.ID, "network.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var l line
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Fatalf("%s: %v", lines.Bytes(), err)
			}
			if l.Container != b.ID {
				t.Errorf("of another container: %s", lines.Bytes())
			}
			who := l.Branch
			if l.Exec == "init" {
				who = l.Exec
			}
			if counts[who] == nil {
				counts[who] = map[string]int{}
			}
			counts[who][l.Event+" "+l.Decision]++
			counts[who][l.Name+l.Path]++
		}
		f.Close()
		if first := counts["init"]; first["connect allow"] > 0 && first["dns refuse"] > 0 || time.Now().After(end) {
			break
		}
	}
	branchOf := func(name string) string {
		m := regexp.MustCompile(`(?m)^0::.*/(exec-[^/\n]+)$`).FindStringSubmatch(d.Do(t, "exec", b.ID, "cat", "/tmp/"+name).Stdout)
		if m == nil {
			t.Fatalf("%s has no cgroup of its own", name)
		}
		return m[1]
	}
	one, two := branchOf("one"), branchOf("two")
	for name, branch := range map[string]string{"one": one, "two": two} {
		got := counts[branch]
		if got["request allow"] != 3 || got["connect allow"] != 3 || got["connect refuse"] != 3 || got["dns refuse"] < 3 || got["example.com/"+name] != 3 || got[name+".test"] < 3 {
			t.Errorf("of %s: %v", name, got)
		}
	}
	if counts[one]["two.test"]+counts[one]["example.com/two"]+counts[two]["one.test"]+counts[two]["example.com/one"] > 0 {
		t.Errorf("one is taken for the other: %v", counts)
	}
	if first := counts["init"]; first["connect allow"] != 1 || first["dns refuse"] == 0 {
		t.Errorf("of the first process: %v", first)
	}
	// The evidence has the same name where the command began.
	d.Must(t, "delete", "--force", b.ID)
	said := box.MustRun(t, ctl(t), "audit", "show", "--json", b.ID)
	if strings.Count(said, `"branch":"`+one+`"`) < 10 || !regexp.MustCompile(`"type":"exec","data":\{"branch":"`+one+`"`).MatchString(said) {
		t.Errorf("the evidence does not say which command it was (%s):\n%s", one, said)
	}
}
