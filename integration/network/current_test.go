package network

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

const currentSocket = "/run/docker-current.sock"

// currentDocker starts a current dockerd, which starts a current containerd, and returns how to call its client.
func currentDocker(t *testing.T) func(t *testing.T, args ...string) harness.Result {
	t.Helper()
	path := make([]string, 0, 4)
	for _, programs := range []func() (string, error){
		func() (string, error) { return harness.CurrentDocker(t.Context()) },
		func() (string, error) { return harness.CurrentContainerd(t.Context()) },
		func() (string, error) { return harness.CurrentDockerCLI(t.Context()) },
	} {
		dir, err := programs()
		if err != nil {
			t.Fatal(err)
		}
		path = append(path, dir)
	}
	runtime, err := harness.RuntimePath()
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{
		"runtimes":      map[string]any{"agentsafe": map[string]any{"path": runtime}},
		"cgroup-parent": box.CgroupParent(), "exec-opts": []string{"native.cgroupdriver=cgroupfs"}, "shutdown-timeout": 5, "bip": "172.30.0.1/24",
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := box.TempDir(t)
	file := filepath.Join(dir, "daemon.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	client := []string{filepath.Join(path[2], "docker"), "-H", "unix://" + currentSocket}
	d, err := box.StartDaemon("dockerd-current", []string{
		filepath.Join(path[0], "dockerd"), "--config-file", file, "--data-root", filepath.Join(dir, "data"), "--exec-root", "/run/docker-current",
		"--pidfile", "/run/docker-current.pid", "--host", "unix://" + currentSocket,
	}, slices.Concat(client, []string{"version"}), "PATH="+strings.Join(append(path, os.Getenv("PATH")), ":"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Stop(), os.RemoveAll("/run/docker-current")); err != nil {
			t.Error(err)
		}
	})
	return func(t *testing.T, args ...string) harness.Result {
		t.Helper()
		return box.Run(t, harness.Cmd{Args: slices.Concat(client, args)})
	}
}

// currentDockerRoutes have the profile by an annotation, as the README writes it.
func currentDockerRoutes(t *testing.T, profile string) []route {
	t.Helper()
	docker := currentDocker(t)
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	if r := docker(t, "load", "--quiet", "--input", busybox.Archive); r.Exit != 0 {
		t.Fatalf("%v", r)
	}
	common := []string{"run", "--rm", "--runtime=agentsafe", "-w", "/work", "-e", searchPath, "--annotation", "agentsafe.dev/profile=" + profile}
	for _, m := range hostPrograms() {
		common = append(common, "-v", m)
	}
	way := func(name string, flags ...string) route {
		return route{name, name == "bridge", func(t *testing.T, folder, script string) harness.Result {
			t.Helper()
			return docker(t, slices.Concat(common, []string{"-v", folder + ":/work:ro"}, flags, []string{image, "sh", "-c", script})...)
		}}
	}
	return []route{way("--network none", "--network", "none"), way("bridge")}
}
