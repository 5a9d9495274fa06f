package realwork

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestTaskCost measures what the policy in force costs a task: the same jobs in containers of runc and of agentsafe's
// default profile, with Docker's defaults, by turns. The time is taken inside, so starting the container is not in it.
func TestTaskCost(t *testing.T) {
	if os.Getenv("AGENTSAFE_BENCH_PROFILES") == "" {
		t.Skip("probe AGENTSAFE_BENCH_PROFILES: not set; make bench-profiles sets it")
	}
	const most = 1.02 // of runc's time
	rounds := 7
	if n, err := strconv.Atoi(os.Getenv("AGENTSAFE_BENCH_PROFILES")); err == nil && n > 2 {
		rounds = n
	}
	jobs := []struct{ name, prepare, job string }{
		{"python start, 100 times", "true", "for i in $(seq 100); do python3 -c pass; done"},
		{
			"git status on 50,000 files",
			"git init -q /tmp/r && cd /tmp/r && seq 500 | xargs mkdir && for d in $(seq 500); do (cd $d; seq 100 | xargs touch); done && git add . && git -c user.name=n -c user.email=e commit -qm m",
			"cd /tmp/r && for i in 1 2 3 4 5; do git status --short; done",
		},
		{"go build of net/http", "true", "export PATH=$PATH:/usr/local/go/bin; rm -rf /tmp/gocache; GOCACHE=/tmp/gocache go build net/http"},
		{"npm install", "cp -r /opt/npm/minimist /tmp/p", "cd /tmp/p && for i in 1 2 3; do rm -rf node_modules; npm ci --offline --no-audit --no-fund --cache /opt/npm/cache >/dev/null 2>&1; done"},
	}
	runc, ours := harness.Peers(t)
	var names [2]string
	for i, p := range []harness.Peer{runc, ours} {
		names[i] = engine.Up(t, p, "-v", os.Getenv(envToolchain)+":/usr/local/go:ro", "-e", "GOTOOLCHAIN=local", "-e", "CGO_ENABLED=0", image, "sleep", "infinity")
	}
	for _, j := range jobs {
		t.Run(j.name, func(t *testing.T) {
			for _, n := range names {
				inside(t, n, j.prepare)
			}
			var wall, cpu [2][]float64
			for round := range rounds {
				for k := range names {
					i := (k + round) % 2 // who is first, changes
					w, c := timed(t, names[i], j.job)
					wall[i], cpu[i] = append(wall[i], w), append(cpu[i], c)
				}
			}
			a, b := median(wall[0]), median(wall[1])
			verdict := "met"
			if b > most*a {
				verdict = "missed"
			}
			t.Logf("%-28s runc %8.1f ms  agentsafe %8.1f ms  ratio %.3f (at most %.2f: %s), of processor time %.3f",
				j.name, a, b, b/a, most, verdict, median(cpu[1])/median(cpu[0]))
		})
	}
}

// timed runs a job in a container and returns the milliseconds that it took, and those of processors that it used: what
// else the machine does changes the first much more than the second.
func timed(t *testing.T, name, job string) (wall, cpu float64) {
	t.Helper()
	script := "TIMEFORMAT='%3R %3U %3S'; time { (" + job + ") >/dev/null 2>&1; }"
	r := box.Run(t, harness.Cmd{Args: engine.Args("exec", name, "bash", "-ec", script), Timeout: 15 * time.Minute})
	var user, system float64
	if _, err := fmt.Sscan(r.Stderr, &wall, &user, &system); err != nil || r.Exit != 0 {
		t.Fatal(err, r)
	}
	return wall * 1000, (user + system) * 1000
}

// inside runs a script in a container and returns what it prints.
func inside(t *testing.T, name, script string) string {
	t.Helper()
	r := box.Run(t, harness.Cmd{Args: engine.Args("exec", name, "sh", "-ec", script), Timeout: 15 * time.Minute})
	if r.Exit != 0 {
		t.Fatal(r)
	}
	return r.Stdout
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
