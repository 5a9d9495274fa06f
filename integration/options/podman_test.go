package options

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// peer is a runtime as podman is told it, with global flags for the profile.
func peer(t *testing.T, runtime string) (p harness.Peer, global []string) {
	t.Helper()
	theirs, p := harness.Peers(t)
	switch runtime {
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
		podmanRun("--device vendor.test/thing=folder", "echo $CDI; cat /cdi/f; cat /hooked", `^yes\ngiven\nby a hook`),
		podmanRun("--device vendor.test/thing=device", "stat -c %t:%T /dev/fuse", `^a:e5`),
		podmanRun("--init", "cat /proc/1/comm", `^podman-init`),
		podmanRun("--ipc host", "echo ran", `^ran`),
		failing(podmanRun("--userns keep-id", "echo ran", ""), "it is for Podman without root, where it is the same (ROOTLESS.md)", `keep-id is only supported in rootless mode`),
		podmanRun("--security-opt mask=/etc/passwd", "wc -c </etc/passwd", `^0`),
		podmanRun("--security-opt unmask=ALL", "echo ran", `^ran`),
		podmanRun("--cap-add NET_ADMIN", "echo ran", `^ran`),
		podmanSecret(),
		podmanRun("-v vol:/v:U", "stat -c %u /v", `^0`),
		podmanRun("--mount type=tmpfs,destination=/v,tmpfs-size=1m", "df -k /v | tail -1 | awk '{print $2}'", `^1024`),
		podmanRun("--network slirp4netns", "ls /sys/class/net", `^lo\ntap0`),
		podmanRun("--shm-size 8m --ulimit core=0:0", "df -k /dev/shm | tail -1 | awk '{print $2}'; ulimit -c", `^8192\n0`),
		podmanPod(),
		podmanKube(),
	}
}

// installCDI describes devices of the Container Device Interface: one of files and a hook, one with a device node that
// not every container has.
func installCDI() error {
	const dir, files = "/etc/cdi", "/var/lib/cdi-thing"
	const description = `{"cdiVersion": "0.3.0", "kind": "vendor.test/thing", "devices": [
		{"name": "folder", "containerEdits": {
			"env": ["CDI=yes"], "mounts": [{"hostPath": "` + files + `", "containerPath": "/cdi", "options": ["ro", "bind"]}],
			"hooks": [{"hookName": "createRuntime", "path": "` + files + `/hook"}]}},
		{"name": "device", "containerEdits": {"deviceNodes": [{"path": "/dev/fuse"}]}}]}`
	// A root without CAP_SYS_RESOURCE can't give a pod's own container what Podman asks for by default.
	const limits = "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n"
	const hook = `#!/bin/sh
bundle=$(sed -n 's/.*"bundle": *"\([^"]*\)".*/\1/p')
root=$(sed -n 's/.*"root": *{"path": *"\([^"]*\)".*/\1/p' "$bundle/config.json")
echo by a hook >"$root/hooked"
`
	return errors.Join(
		os.MkdirAll("/etc/containers", 0o755), os.WriteFile("/etc/containers/containers.conf", []byte(limits), 0o644),
		os.MkdirAll(dir, 0o755), os.MkdirAll(files, 0o755), os.WriteFile(filepath.Join(dir, "thing.json"), []byte(description), 0o644),
		os.WriteFile(filepath.Join(files, "f"), []byte("given\n"), 0o644), os.WriteFile(filepath.Join(files, "hook"), []byte(hook), 0o755),
	)
}

// podmanSecret hands over a secret as a file.
func podmanSecret() row {
	return row{engine: "podman", option: "`--secret`", prints: `^given`, do: func(t *testing.T, runtime string) harness.Result {
		name := box.ID()
		if r := podmanDo(t, runtime, "secret", "create", name, "DIR/f"); r.Exit != 0 {
			return r
		}
		t.Cleanup(func() { podmanDo(t, runtime, "secret", "rm", name) })
		return podmanDo(t, runtime, "run", "--rm", "--network", "none", "--cgroup-parent", box.CgroupParent(), "--secret", name+",target=thing", image, "cat", "/run/secrets/thing")
	}}
}

// podmanPod makes a pod whose containers share their namespaces.
func podmanPod() row {
	return row{engine: "podman", option: "`pod create`, containers in one pod", prints: `^served\nsame`, do: func(t *testing.T, runtime string) harness.Result {
		p, global := peer(t, runtime)
		do := func(args ...string) harness.Result { return podman.Do(t, p, append(slices.Clone(global), args...)...) }
		pod := box.ID()
		t.Cleanup(func() { removePod(t, do, pod) })
		limits := []string{"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--pod", pod}
		if r := do("pod", "create", "--name", pod, "--cgroup-parent", box.CgroupParent(), "--network", "none", "--infra-image", harness.BusyboxName, "--infra-command", "sleep 1000", "--share", "net,ipc,uts"); r.Exit != 0 {
			return r
		}
		if r := do(append(append([]string{"run", "--detach"}, limits...), image, "probe", "serve", ":80", "served")...); r.Exit != 0 {
			return r
		}
		second := append(append([]string{"run", "--rm"}, limits...), image, "sh", "-c", "for i in $(seq 100); do probe get http://127.0.0.1 2>/dev/null && break; sleep 0.1; done; hostname >/dev/null && echo same")
		r := do(second...)
		return result(strings.TrimSpace(r.Stdout), r.Exit, do("pod", "ps", "--quiet").Exit)
	}}
}

// removePod removes a pod, and the cgroups that Podman leaves of it.
func removePod(t *testing.T, do func(args ...string) harness.Result, pod string) {
	t.Helper()
	id := strings.TrimSpace(do("pod", "inspect", "--format", "{{.ID}}", pod).Stdout)
	do("pod", "rm", "--force", "--time", "0", pod)
	if id != "" {
		box.Run(t, harness.Cmd{Args: []string{"find", "/sys/fs/cgroup", "-depth", "-type", "d", "-path", "*" + id + "*", "-exec", "rmdir", "{}", ";"}})
	}
}

// podmanKube runs a pod of Kubernetes' YAML.
func podmanKube() row {
	const pod = `apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - name: one
    image: ` + harness.BusyboxName + `
    command: [sh, -c, "echo from the pod; sleep 1000"]
    resources: {limits: {memory: 64Mi}}
    securityContext: {runAsUser: 1000, readOnlyRootFilesystem: true}
`
	return row{engine: "podman", option: "`play kube`", prints: `^1000\n1`, do: func(t *testing.T, runtime string) harness.Result {
		p, global := peer(t, runtime)
		do := func(args ...string) harness.Result { return podman.Do(t, p, append(slices.Clone(global), args...)...) }
		name, file := box.ID(), filepath.Join(box.TempDir(t), "pod.yaml")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(pod, "NAME", name)), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { removePod(t, do, name) })
		r := do("play", "kube", "--network", "none", file)
		if r.Exit != 0 {
			return harness.Result{Exit: r.Exit, Stderr: r.Stdout + r.Stderr}
		}
		return result(do("exec", name+"-one", "sh", "-c", "id -u; touch /x 2>/dev/null; echo $?").Stdout)
	}}
}
