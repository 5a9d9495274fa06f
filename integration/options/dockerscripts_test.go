package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// scripted is a row of several commands, as somebody would type them. In the script $D is the client, $RT the runtime, $N a
// container's name, which is removed afterwards, $IMG the image; wait_for waits for a command's success, as long as the row may
// take. The current directory has a file f.
func scripted(option, prints, script string) row {
	return row{engine: "docker", option: option, prints: prints, do: func(t *testing.T, runtime string) harness.Result {
		dir, name := box.TempDir(t), box.ID()
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte("given\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { engine.Do(t, "rm", "--force", "--volumes", name) })
		return box.Run(t, harness.Cmd{
			Args: []string{"sh", "-c", "D='" + strings.Join(engine.Args(), " ") + "'\nwait_for() { until eval \"$1\" >/dev/null 2>&1; do sleep 0.1; done; }\n" + script},
			Dir:  dir, Timeout: 5 * time.Minute, Env: []string{"RT=" + runtime, "N=" + name, "IMG=" + image},
		})
	}}
}

// dockerScripts are mixtures of options and operations.
func dockerScripts() []row {
	const waits = `sh -c 'trap "echo bye; exit 9" TERM; echo up; while :; do sleep 0.05; done'`
	return []row{
		scripted("`update` of one limit after another, one of them while paused; the others stay", `^33554432\n33554432\n70000\n50\n0\nmax`, `
$D run -d --memory 64m --memory-swap 64m --runtime $RT --name $N $IMG sleep 1000 >/dev/null; $D pause $N >/dev/null
$D update --memory 32m --memory-swap 32m --cpus 0.7 --pids-limit 50 $N >/dev/null; $D unpause $N >/dev/null
cat='cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes memory/memory.memsw.limit_in_bytes cpu/cpu.cfs_quota_us pids/pids.max 2>/dev/null || cat memory.max memory.swap.max cpu.max pids.max'
$D exec $N sh -c "$cat"; $D update --pids-limit -1 --memory-swap -1 $N >/dev/null; echo $?; $D exec $N sh -c 'cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max'
$D update --cpus 0.5 $N >/dev/null; echo $?; $D update --memory-swap 48m $N >/dev/null; echo $?; $D exec $N sh -c "$cat"`),
		scripted("signals of the client's process (`--sig-proxy`)", `^up\nbye\n9`, `
$D run --name $N --runtime $RT $IMG `+waits+` & wait_for "$D logs $N | grep up"; kill -TERM $!; wait $!; echo $?`),
		scripted("`--init`, `--detach`, `stop`", `^9`, `
$D run -d --init --runtime $RT --name $N $IMG `+waits+` >/dev/null; wait_for "$D logs $N | grep up"; $D stop -t 60 $N >/dev/null; $D inspect -f '{{.State.ExitCode}}' $N`),
		scripted("`exec`, `top`, `stop`, `kill`, `restart`, `rm --force` of a paused container", `^1\nexited 137\nexited 137\n0\nrunning`, `
$D run -d --runtime $RT --name $N $IMG sleep 1000 >/dev/null; $D pause $N >/dev/null; $D exec $N true; echo $?; $D top $N >/dev/null || echo no top; $D stop -t 1 $N >/dev/null
$D inspect -f '{{.State.Status}} {{.State.ExitCode}}' $N; $D start $N >/dev/null; $D pause $N >/dev/null; $D kill $N >/dev/null; $D unpause $N >/dev/null; wait_for "$D inspect -f '{{.State.Status}}' $N | grep exited"
$D inspect -f '{{.State.Status}} {{.State.ExitCode}}' $N; $D start $N >/dev/null; $D pause $N >/dev/null; $D restart -t 1 $N >/dev/null; echo $?; $D inspect -f '{{.State.Status}}' $N; $D pause $N >/dev/null; $D rm -f $N >/dev/null; echo $?`),
		scripted("`--restart unless-stopped`, the process killed from outside; `update --restart no`", `^1\n137 false`, `
$D run -d --restart unless-stopped --runtime $RT --name $N $IMG sleep 1000 >/dev/null; kill -9 $($D inspect -f '{{.State.Pid}}' $N); wait_for "$D inspect -f '{{.RestartCount}} {{.State.Running}}' $N | grep '1 true'"
$D inspect -f '{{.RestartCount}}' $N; $D update --restart no $N >/dev/null; kill -9 $($D inspect -f '{{.State.Pid}}' $N); wait_for "$D inspect -f '{{.State.Status}}' $N | grep exited"; $D inspect -f '{{.State.ExitCode}} {{.State.OOMKilled}}' $N`),
		scripted("`--memory 16m`, more is used: `.State.OOMKilled`", `^137\ntrue`, `
$D run --runtime $RT --name $N --memory 16m --memory-swap 16m $IMG tail /dev/zero; echo $?; $D inspect -f '{{.State.OOMKilled}}' $N`),
		scripted("`--mount ...,bind-nonrecursive=true`, `readonly` of a tree of mounts", `^sub\n1\nin`, `
mkdir d d/sub; mount --bind d d; mount -t tmpfs none d/sub; touch d/sub/in; v=type=bind,source=$PWD/d,target=/v
$D run --rm --runtime $RT --mount $v,bind-nonrecursive=true $IMG sh -c 'ls /v; ls /v/sub | grep -c . | grep -q 0; echo 1'
$D run --rm --runtime $RT --mount $v,readonly $IMG sh -c 'ls /v/sub; touch /v/x 2>/dev/null; echo $?; touch /v/sub/x 2>/dev/null; echo $?'; umount d/sub d`),
		scripted("`-v FILE:` over files and below folders of the engine, through links, into folders that are not there", `^(given\n){7}$`, `
for m in /var/run/x /dev/shm/x /dev/x /run/a/b/c /etc/hosts /etc/resolv.conf /tmp/../y; do $D run --rm --runtime $RT -v $PWD/f:$m $IMG cat $m; done`),
		scripted("pipes of 5 MB through `run`, `exec`, `cp -`", `^0\n0\n0\n0\n$`, `
head -c 5000000 /dev/urandom >r; $D run -i --rm --runtime $RT $IMG cat <r | cmp - r; echo $?; $D run -d --runtime $RT --name $N $IMG sleep 1000 >/dev/null
$D exec -i $N cat <r | cmp - r; echo $?; tar -c r | $D cp - $N:/tmp; echo $?; $D cp $N:/tmp/r - | tar -xO | cmp - r; echo $?`),
		scripted("`--user app`, `exec --user app`, the standard streams by name (/dev/stdout, /dev/stderr, /proc/self/fd)", `^a\nd\nxa\nd\nx`, `
s='echo a >/dev/stdout; echo b >/dev/stderr; echo c >/proc/self/fd/2; exec 3>/dev/fd/1; echo d >&3; head -c 1 /dev/stdin'
echo x | $D run --rm -i --runtime $RT -u app $IMG sh -c "$s"; $D run -d --runtime $RT --name $N $IMG sleep 1000 >/dev/null; echo x | $D exec -i -u app $N sh -c "$s"`),
		scripted("`--user app`, `exec --user 0`: root may what root may", `^0 0\n`, `
$D run -d --user app --runtime $RT --name $N $IMG sleep 1000 >/dev/null; $D exec -u 0 $N sh -c 'touch /f && chown app /f && chown 0:0 /f && stat -c "%u %g" /f; su app -c "id -u"'`),
		scripted("`--pids-limit 0`, `-1`, `1`", `^max\n0\nmax\n0\n`, `
for n in 0 -1 1; do $D run --rm --runtime $RT --pids-limit $n $IMG sh -c 'cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max'; echo $?; done`),
		failing(scripted("an empty command", "", "exec $D run --rm --runtime $RT $IMG ''"), "no such program", `executable file not found`),
		failing(simple("-v /tmp:/proc", "ls /proc", ""), "proc is the kernel's", `not of type proc|the kernel's own directories`),
		failing(simple("-v /etc/hostname:/proc/version", "cat /proc/version", ""), "proc is the kernel's", `inside /proc|the kernel's own directories`),
	}
}
