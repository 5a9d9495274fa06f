package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// CurrentContainerd builds the containerd, ctr and containerd-shim-runc-v2 that integration/engines/containerd names
// and returns their directory. It takes minutes and the network, once.
func CurrentContainerd(ctx context.Context) (string, error) {
	const commands = "github.com/containerd/containerd/v2/cmd/"
	return buildEngine(ctx, "containerd", func(dir string) [][]string {
		return [][]string{{"build", "-o", dir + "/", commands + "containerd", commands + "ctr", commands + "containerd-shim-runc-v2"}}
	})
}

// CRITools builds the crictl, critest and crane that integration/engines/critools names and returns their directory.
func CRITools(ctx context.Context) (string, error) {
	return buildEngine(ctx, "critools", func(dir string) [][]string {
		return [][]string{
			{"build", "-o", dir + "/", "sigs.k8s.io/cri-tools/cmd/crictl", "github.com/google/go-containerregistry/cmd/crane"},
			{"test", "-c", "-o", filepath.Join(dir, "critest"), "sigs.k8s.io/cri-tools/cmd/critest"},
		}
	})
}

// CurrentDocker builds the dockerd and docker-proxy that integration/engines/moby names and returns their directory.
func CurrentDocker(ctx context.Context) (string, error) {
	const commands = "github.com/moby/moby/v2/cmd/"
	return buildEngine(ctx, "moby", func(dir string) [][]string {
		return [][]string{{"build", "-o", dir + "/", commands + "dockerd", commands + "docker-proxy"}}
	})
}

// buildEngine runs the go commands (a subcommand and its arguments) in the module integration/engines/NAME, unless its
// go.mod has been built before.
func buildEngine(ctx context.Context, name string, commands func(dir string) [][]string) (string, error) {
	root, err := RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "integration", "engines", name)
	recipe, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	return Cached(name, name+", version 1\n"+string(recipe), func(dir string) error {
		for _, args := range commands(dir) {
			args = append([]string{args[0], "-mod=readonly", "-trimpath", "-ldflags", "-s -w"}, args[1:]...)
			build := exec.CommandContext(ctx, "go", args...)
			build.Dir, build.Env = module, append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				return fmt.Errorf("go %s: %w\n%s", args[0], err, tail(out))
			}
		}
		return nil
	})
}
