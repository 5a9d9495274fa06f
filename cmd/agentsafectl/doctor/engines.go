package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// runtimeName is the name under which agentsafe is registered, and shimType the
// type of its containerd shim.
const (
	runtimeName = "agentsafe"
	shimType    = "io.containerd.agentsafe.v2"
)

const versionTimeout = 5 * time.Second

// engines looks for engines and their configuration beneath root, "/" but in
// tests.
func engines(ctx context.Context, root string) []EngineFacts {
	out := []EngineFacts{
		{Name: "docker", Version: engineVersion(ctx, "dockerd", "docker"), ConfigPath: "/etc/docker/daemon.json"},
		{Name: "containerd", Version: engineVersion(ctx, "containerd"), ConfigPath: "/etc/containerd/config.toml"},
		{Name: "podman", Version: engineVersion(ctx, "podman"), ConfigPath: "/etc/containers/containers.conf"},
		{Name: "cri-o", Version: engineVersion(ctx, "crio"), ConfigPath: "/etc/crio/crio.conf"},
	}
	readers := []func(data []byte) (bool, error){dockerRegistered, containerdRegistered, podmanRegistered, crioRegistered}
	for i := range out {
		out[i].look(root, readers[i])
	}
	return out
}

// look reads the configuration file and the drop-ins beside it.
func (e *EngineFacts) look(root string, registered func([]byte) (bool, error)) {
	for _, path := range e.configFiles(root) {
		data, err := os.ReadFile(filepath.Join(root, path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			e.Registered, err = registered(data)
		}
		if err != nil {
			e.ConfigPath, e.ConfigErr = path, err.Error()
			return
		}
		if e.Registered {
			e.ConfigPath = path
			return
		}
	}
}

func (e *EngineFacts) configFiles(root string) []string {
	out := []string{e.ConfigPath}
	if e.Name == "podman" {
		out = append(out, "/usr/share/containers/containers.conf")
	}
	for _, p := range []string{e.ConfigPath + ".d/*.conf", filepath.Dir(e.ConfigPath) + "/conf.d/*.toml"} {
		found, _ := filepath.Glob(filepath.Join(root, p)) // the pattern is right
		sort.Strings(found)
		for _, f := range found {
			out = append(out, "/"+strings.TrimPrefix(strings.TrimPrefix(f, root), "/"))
		}
	}
	return out
}

// engineVersion returns the first line that the first installed program of the
// list says of itself.
func engineVersion(ctx context.Context, names ...string) string {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, path, "--version")
		cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LANG=C"}
		data, err := cmd.Output()
		line, _, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
		if err != nil || line == "" {
			return path + " (does not tell its version)"
		}
		return line
	}
	return ""
}

func dockerRegistered(data []byte) (bool, error) {
	var c struct {
		Runtimes map[string]any `json:"runtimes"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return false, fmt.Errorf("parse: %w", err)
	}
	_, ok := c.Runtimes[runtimeName]
	return ok, nil
}

// containerdRegistered looks for a runtime of our name or type at any depth: the
// plugin that owns the table changed its name with every major version.
func containerdRegistered(data []byte) (bool, error) {
	var c map[string]any
	if err := toml.Unmarshal(data, &c); err != nil {
		return false, fmt.Errorf("parse: %w", err)
	}
	return hasRuntime(c, 0), nil
}

func hasRuntime(table map[string]any, depth int) bool {
	const maxDepth = 12
	for key, value := range table {
		switch v := value.(type) {
		case map[string]any:
			if key == "runtimes" && v[runtimeName] != nil || depth < maxDepth && hasRuntime(v, depth+1) {
				return true
			}
		case string:
			if key == "runtime_type" && v == shimType || key == "BinaryName" && filepath.Base(v) == runtimeName {
				return true
			}
		}
	}
	return false
}

func podmanRegistered(data []byte) (bool, error) {
	var c struct {
		Engine struct {
			Runtimes map[string]any `toml:"runtimes"`
		} `toml:"engine"`
	}
	if err := toml.Unmarshal(data, &c); err != nil {
		return false, fmt.Errorf("parse: %w", err)
	}
	_, ok := c.Engine.Runtimes[runtimeName]
	return ok, nil
}

func crioRegistered(data []byte) (bool, error) {
	var c struct {
		CRIO struct {
			Runtime struct {
				Runtimes map[string]any `toml:"runtimes"`
			} `toml:"runtime"`
		} `toml:"crio"`
	}
	if err := toml.Unmarshal(data, &c); err != nil {
		return false, fmt.Errorf("parse: %w", err)
	}
	_, ok := c.CRIO.Runtime.Runtimes[runtimeName]
	return ok, nil
}
