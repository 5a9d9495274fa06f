package realwork

import (
	"os"
	"slices"
	"strconv"
	"strings"
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
		for _, j := range jobs {
			inside(t, names[i], j.prepare)
		}
	}
	for _, j := range jobs {
		var millis [2][]float64
		for round := range rounds {
			for k := range names {
				i := (k + round) % 2 // who is first, changes
				millis[i] = append(millis[i], timed(t, names[i], j.job))
			}
		}
		a, b := median(millis[0]), median(millis[1])
		verdict := "met"
		if b > most*a {
			verdict = "missed"
		}
		t.Logf("%-28s runc %8.1f ms  agentsafe %8.1f ms  ratio %.3f (at most %.2f: %s)", j.name, a, b, b/a, most, verdict)
	}
}

// timed runs a job in a container and returns the milliseconds that it took.
func timed(t *testing.T, name, job string) float64 {
	t.Helper()
	out := inside(t, name, "a=$(date +%s%N); ("+job+") >/dev/null; b=$(date +%s%N); echo $(((b-a)/1000))")
	micros, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if err != nil {
		t.Fatal(err)
	}
	return micros / 1000
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
