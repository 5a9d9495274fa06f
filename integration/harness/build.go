package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// CurrentDockerCLI builds the docker command that integration/engines/dockercli names and returns its directory.
func CurrentDockerCLI(ctx context.Context) (string, error) {
	return buildEngine(ctx, "dockercli", func(dir string) [][]string {
		// The module has no go.mod, so that go takes it for one of the time before type parameters.
		return [][]string{{"build", "-gcflags=github.com/docker/cli/...=-lang=go1.25", "-o", dir + "/", "github.com/docker/cli/cmd/docker"}}
	})
}

// H3Client builds the HTTP/3 client and server of integration/engines/h3client and returns its directory.
func H3Client(ctx context.Context) (string, error) {
	return buildEngine(ctx, "h3client", func(dir string) [][]string {
		return [][]string{{"build", "-o", dir + "/", "."}}
	})
}

// buildEngine runs the go commands (a subcommand and its arguments) in the module integration/engines/NAME, unless its
// go.mod, and program if it has one, has been built before.
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
	if program, err := os.ReadFile(filepath.Join(module, "main.go")); err == nil { // one of our own
		recipe = append(recipe, program...)
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

// ErrNoHistory says that the commit before this one is not there, as in a shallow clone or an unpacked archive.
var ErrNoHistory = errors.New("no history")

// Previous builds agentsafe and its helper programs as they were before: of the last commit if the work tree differs from
// it, of the one before if not, or of the commit that AGENTSAFE_TEST_OLDER_COMMIT names. It returns their directory.
func Previous(ctx context.Context) (string, error) {
	root, err := RepoRoot()
	if err != nil {
		return "", err
	}
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	name := os.Getenv("AGENTSAFE_TEST_OLDER_COMMIT")
	if name == "" {
		name = "HEAD~1"
		if changed, err := git("status", "--porcelain"); err == nil && changed != "" {
			name = "HEAD"
		}
	}
	commit, err := git("rev-parse", "--verify", "--quiet", name+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("%w: git has no commit %s", ErrNoHistory, name)
	}
	return Cached("previous", "previous, version 1\n"+commit, func(dir string) error {
		source := filepath.Join(dir, "source")
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		script := `git -C "$1" archive "$2" | tar -C "$3" -x && make -C "$3" BIN="$4" agentsafe agentsafe-seccomp agentsafe-monitor agentsafe-gateway && rm -r "$3"`
		return run(exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", script, "bash", root, commit, source, dir))
	})
}
