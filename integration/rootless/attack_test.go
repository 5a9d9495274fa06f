package rootless

import (
	"strings"
	"testing"
)

// TestAttack_SetIDPrograms has a task try the set-id programs of the host that could give it ids or rights: those that
// map subordinate ids among them. Its user has such ids.
func TestAttack_SetIDPrograms(t *testing.T) {
	const script = `
id -u
newuidmap 1 0 200000 1 && echo GAINED newuidmap
su -c 'id -u' root </dev/null && echo GAINED su
unshare -r id -u && echo GAINED userns
unshare -U --map-auto id -u && echo GAINED auto
cp /bin/sh x && chmod 4755 x && ./x -c 'grep NoNewPrivs /proc/self/status'; rm -f x
exit 0`
	r := rick.do(t, "agentsafectl", "run", "-q", "--", "sh", "-c", script)
	if r.Exit != 0 || strings.Contains(r.Stdout, "GAINED") || r.Stdout != "4242\nNoNewPrivs:\t1\n" {
		t.Error(r)
	}
}
