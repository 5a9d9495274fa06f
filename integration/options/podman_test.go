package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// peer is a runtime as podman is told it, with global flags for the profile.
func peer(t *testing.T, runtime string) (p harness.Peer, global []string) {
	t.Helper()
	ours, theirs := runtime, harness.Peer{}
	theirs, p = harness.Peers(t)
	switch ours {
	case runc:
		return theirs, nil
	case none:
		return p, []string{"--runtime-flag", "profile=none"}
	}
	return p, nil
}

// podmanDo runs podman; DIR in an argument becomes a directory with the file f.
func podmanDo(t *testing.T, runtime, command string, args ...string) harness.Result {
	t.Helper()
	p, global := peer(t, runtime)
	dir := box.TempDir(t)
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("given\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	all := append(global, command)
	for _, a := range args {
		all = append(all, strings.ReplaceAll(a, "DIR", dir))
	}
	return podman.Do(t, p, all...)
}

// podmanRun is a row of one `podman run`. The limits are there because Podman's own ask for more than a root without
// CAP_SYS_RESOURCE may give.
func podmanRun(option, script, prints string) row {
	return row{engine: "podman", option: "`" + option + "`", prints: prints, do: func(t *testing.T, runtime string) harness.Result {
		args := []string{"--rm", "--cgroup-parent", box.CgroupParent(), "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"}
		if !strings.Contains(option, "--network") {
			args = append(args, "--network", "none") // Podman leaves the namespaces of a bridge behind when a start is refused
		}
		args = append(append(args, strings.Fields(option)...), image, "sh", "-c", script)
		return podmanDo(t, runtime, "run", args...)
	}}
}

func podmanRows() []row {
	return []row{
		podmanRun("--network none", "ls /sys/class/net", `^lo\n`),
		podmanRun("--tmpfs /etc", "ls /etc/passwd; touch /etc/new; echo $?", `^/etc/passwd\n0`),
		podmanRun("--read-only", "touch /x 2>/dev/null; echo $?; touch /tmp/x; echo $?", `^1\n0`),
		podmanRun("-v DIR:/v", "cat /v/f", `^given`),
		podmanRun("-v DIR:/v:O", "cat /v/f; echo new >/v/f; cat /v/f", `^given\nnew`),
		podmanRun("-v DIR:/v:ro,rslave", "cat /v/f; touch /v/x 2>/dev/null; echo $?", `^given\n1`),
		podmanRun("--uidmap 0:100000:1000 --gidmap 0:100000:1000", "cat /proc/self/uid_map", `100000\s+1000`),
		podmanRun("--user 1000 --workdir /tmp", "id -u; pwd", `^1000\n/tmp`),
		podmanRun("--cap-drop all --security-opt no-new-privileges", "grep 'CapEff\\|NoNew' /proc/self/status", `:\s*0+\nNoNewPrivs:\s*1`),
		podmanRun("--privileged", "echo ran", `^ran`),
		podmanRun("--pid host", "echo ran", `^ran`),
		podmanRun("--device /dev/null:/dev/other", "stat -c %t:%T /dev/other", `^1:3`),
		podmanRun("--memory 64m --pids-limit 33", "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max", `^33`),
		podmanRun("--systemd always", "stat -f -c %T /run /tmp", `tmpfs`),
		podmanRun("--umask 0077 --tz UTC", "umask", `^0077`),
	}
}
