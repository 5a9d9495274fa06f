package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// gpuHook is what NVIDIA's toolkit installs under this name: dockerd runs it as a prestart hook for --gpus, and it puts
// its files into the root file system through the mount namespace of the process that it reads of.
const gpuHook = `#!/bin/sh
state=$(cat)
pid=$(echo "$state" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
bundle=$(echo "$state" | sed -n 's/.*"bundle": *"\([^"]*\)".*/\1/p')
root=$(sed -n 's/.*"root": *{"path": *"\([^"]*\)".*/\1/p' "$bundle/config.json")
exec nsenter --mount=/proc/$pid/ns/mnt -- sh -c "mkdir -p $root/gpu && mount -t tmpfs none $root/gpu && echo $* >$root/gpu/driver"
`

// installGPUHook puts the hook where dockerd looks for it, and must come before its start.
func installGPUHook(b *harness.Box) error {
	dir := filepath.Join(b.Dir, "gpu")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "nvidia-container-runtime-hook"), []byte(gpuHook), 0o755); err != nil {
		return err
	}
	return os.Setenv("PATH", os.Getenv("PATH")+":"+dir)
}

// dockerMore are options that fewer people use.
func dockerMore() []row {
	return []row{
		simple("--gpus all", "cat /gpu/driver; echo $NVIDIA_VISIBLE_DEVICES", `^prestart\nall`),
		simple("--cpu-period 20000 --cpu-quota 10000 --cpuset-mems 0", "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cat /sys/fs/cgroup/cpu.max", `^10000`),
		simple("--device-read-bps /dev/loop0:1mb", "cat /sys/fs/cgroup/blkio/blkio.throttle.read_bps_device 2>/dev/null || cat /sys/fs/cgroup/io.max", `7:0 .*1048576`),
		simple("--oom-kill-disable --memory 64m", "grep oom_kill_disable /sys/fs/cgroup/memory/memory.oom_control || echo none", `^oom_kill_disable 1|^none`),
		simple("--memory-swappiness 10", "cat /sys/fs/cgroup/memory/memory.swappiness || echo none", `^10|^none`),
		simple("--ipc none", "ls /dev/shm 2>/dev/null; echo $?", `^1`),
		{engine: "docker", option: "`--link X:name`", prints: `^served`, do: func(t *testing.T, runtime string) harness.Result {
			other := up(t, runtime, "--expose", "80", "--entrypoint", "/bin/probe", image, "serve", ":80", "served")
			return eventually(t, "run", "--rm", "--runtime", runtime, "--link", other+":server", image, "probe", "get", "http://server")
		}},
		failing(simple("--pid=container:nobody", "echo ran", ""), "no such container", `(?i)no such container`),
		failing(simple("--network nowhere", "echo ran", ""), "no such network", `nowhere not found`),
		failing(simple("--user nobody-there", "echo ran", ""), "no such user", `unable to find user`),
		failing(simple("--workdir /etc/passwd", "echo ran", ""), "no directory", `(?i)not a directory`),
		failing(simple("--network host -p 80:80 --network-alias a", "echo ran", ""), "they contradict each other", `alias`),
		failing(simple("--uts host --hostname a", "echo ran", ""), "they contradict each other", `conflicting options`),
		failing(simple("--network container:X -p 80:80", "echo ran", ""), "they contradict each other", `conflicting options`),
		failing(simple("--memory 64m --memory-swap 32m", "echo ran", ""), "they contradict each other", `larger than memory limit`),
		failing(simple("--entrypoint /nowhere", "", ""), "no such program", `no such file`),
		failing(simple("--init --entrypoint /nowhere", "", ""), "no such program", `exec /nowhere failed`),
		simple("--network none -p 80:80", "ls /sys/class/net", `^lo\n$`),
		simple("--hostname a --network host", "hostname", `^a`),
		simple("--publish-all --expose 80", "ls /sys/class/net", `eth0`),
		simple("--security-opt label=disable", "echo ran", `^ran`),
		failing(simple("--mount type=bind,source=/nowhere,target=/v", "echo ran", ""), "no such folder", `does not exist`),
		{engine: "docker", option: "`--env-file`, `--label`, `--cidfile`", prints: `^b\n64`, do: func(t *testing.T, runtime string) harness.Result {
			dir := box.TempDir(t)
			if err := os.WriteFile(filepath.Join(dir, "env"), []byte("A=b\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			r := engine.Do(t, "run", "--rm", "--runtime", runtime, "--env-file", dir+"/env", "--label", "x=y", "--cidfile", dir+"/id", image, "sh", "-c", "echo $A")
			id, err := os.ReadFile(filepath.Join(dir, "id"))
			if err != nil {
				t.Error(err)
			}
			return result(strings.TrimSpace(r.Stdout), len(id))
		}},
		{engine: "docker", option: "volume of a driver's options (`-o type=tmpfs`; a share of the network is mounted by dockerd alike)", prints: `^tmpfs`, do: func(t *testing.T, runtime string) harness.Result {
			volume := box.ID()
			engine.Must(t, "volume", "create", "-o", "type=tmpfs", "-o", "device=tmpfs", "-o", "o=size=1m", volume)
			t.Cleanup(func() { engine.Must(t, "volume", "rm", volume) })
			return engine.Do(t, "run", "--rm", "--runtime", runtime, "-v", volume+":/v", image, "stat", "-f", "-c", "%T", "/v")
		}},
		{engine: "docker", option: "`--security-opt seccomp=FILE`", prints: `Operation not permitted`, do: func(t *testing.T, runtime string) harness.Result {
			file := filepath.Join(box.TempDir(t), "seccomp.json")
			const filter = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}`
			if err := os.WriteFile(file, []byte(filter), 0o644); err != nil {
				t.Fatal(err)
			}
			return engine.Do(t, "run", "--rm", "--runtime", runtime, "--security-opt", "seccomp="+file, image, "sh", "-c", "mkdir /x 2>&1; ls -d /x 2>/dev/null; echo done")
		}},
		{engine: "docker", option: "`--ip` on a network with `--subnet`", prints: `172.30.77.7`, do: func(t *testing.T, runtime string) harness.Result {
			// A subnet of its own for each runtime: rows run beside each other.
			subnet := map[string]string{runc: "172.30.77.0/24", none: "172.30.78.0/24", agent: "172.30.79.0/24"}[runtime]
			network := box.ID()
			engine.Must(t, "network", "create", "--subnet", subnet, network)
			t.Cleanup(func() { engine.Must(t, "network", "rm", network) })
			r := engine.Do(t, "run", "--rm", "--runtime", runtime, "--network", network, "--ip", strings.Replace(subnet, "0/24", "7", 1), image, "ip", "-4", "-o", "addr", "show", "eth0")
			r.Stdout = strings.NewReplacer("172.30.78.", "172.30.77.", "172.30.79.", "172.30.77.").Replace(r.Stdout)
			_, r.Stdout, _ = strings.Cut(r.Stdout, "inet ")
			return r
		}},
		{engine: "docker", option: "`create`, `start --attach --interactive`, `wait`", prints: `^in\n\n7`, do: func(t *testing.T, runtime string) harness.Result {
			name := box.ID()
			t.Cleanup(func() { engine.Do(t, "rm", "--force", name) })
			engine.Must(t, "create", "--interactive", "--runtime", runtime, "--name", name, image, "sh", "-c", "cat; exit 7")
			r := box.Run(t, harness.Cmd{Args: engine.Args("start", "--attach", "--interactive", name), Stdin: "in\n"})
			return result(r.Stdout, r.Exit, engine.Must(t, "wait", name))
		}},
		operation("`exec` with a terminal", `/dev/pts/\d`, func(t *testing.T, c string) harness.Result {
			r := box.Run(t, harness.Cmd{Args: engine.Args("exec", "-it", c, "sh", "-c", "tty; exit 3"), TTY: true})
			return result(strings.ReplaceAll(r.Stdout, "\r", ""), r.Exit)
		}),
		operation("`kill --signal` by number and name, `logs --follow`", `^got\n\n0`, func(t *testing.T, c string) harness.Result {
			follow := box.Start(t, harness.Cmd{Args: engine.Args("logs", "--follow", c)})
			waitLog(t, c, "up")
			engine.Must(t, "kill", "--signal", "USR1", c)
			waitLog(t, c, "got")
			engine.Must(t, "kill", "--signal", "15", c)
			r := follow.Wait(t)
			return result(strings.TrimPrefix(r.Stdout, "up\n"), r.Exit)
		}, image, "sh", "-c", `trap "echo got" USR1; trap "exit 0" TERM; echo up; while :; do sleep 0.05; done`),
		operation("`cp` of a tree with links and owners, into a paused container", `.`, func(t *testing.T, c string) harness.Result {
			dir := box.TempDir(t)
			box.MustRun(t, "sh", "-c", "mkdir "+dir+"/d && cd "+dir+"/d && touch f && chmod 640 f && ln -s f l && chown 7:8 f")
			engine.Must(t, "pause", c)
			engine.Must(t, "cp", "--archive", dir+"/d", c+":/d")
			engine.Must(t, "unpause", c)
			return engine.Do(t, "exec", c, "stat", "-c", "%n %F %a %u:%g", "/d/f", "/d/l")
		}),
		operation("`--health-cmd` that fails", `^unhealthy`, func(t *testing.T, c string) harness.Result {
			return result(waitInspect(t, c, "{{.State.Health.Status}}", "unhealthy"))
		}, "--health-cmd", "exit 3", "--health-interval", "200ms", "--health-retries", "2"),
		{engine: "docker", option: "`--restart always`, `stop`, `start`", prints: `^exited\nrunning`, do: func(t *testing.T, runtime string) harness.Result {
			c := up(t, runtime, "--restart", "always")
			engine.Must(t, "stop", "-t", "0", c)
			stopped := inspect(t, c, "{{.State.Status}}")
			engine.Must(t, "start", c)
			return result(stopped, inspect(t, c, "{{.State.Status}}"))
		}},
		{engine: "docker", option: "`rm --force` of one that runs, `container prune`", prints: `^1`, do: func(t *testing.T, runtime string) harness.Result {
			name := box.ID()
			engine.Must(t, "run", "--detach", "--runtime", runtime, "--name", name, image, "sleep", "1000")
			engine.Must(t, "rm", "--force", name)
			return result(engine.Do(t, "inspect", name).Exit)
		}},
	}
}

func waitLog(t *testing.T, c, text string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(engine.Must(t, "logs", c), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log never says %q", text)
		}
	}
}
