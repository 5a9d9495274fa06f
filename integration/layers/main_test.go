package layers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box        *harness.Box
	docker     *harness.Docker
	containerd *harness.Containerd
)

const image = "busybox:test"

// store is where the programs keep layers. In the box /var/lib is an overlay, which can't hold another one's upper
// directory, so a directory of the machine's own file system is bound there.
const store = "/var/lib/agentsafe/layers"

// runs is where agentsafectl run keeps the writable layers of root file systems, for the same reason.
const runs = "/var/lib/agentsafe/runs"

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(ctx context.Context) error {
			_, err := harness.Busybox()
			if err != nil {
				return err
			}
			if _, err = posixcheck(); err != nil {
				return err
			}
			_, err = harness.Debian(ctx)
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			for _, dir := range []string{store, runs} {
				backing := filepath.Join(b.Dir, filepath.Base(dir))
				if err := errors.Join(os.MkdirAll(backing, 0o700), os.MkdirAll(dir, 0o700)); err != nil {
					return nil, err
				}
				if err := unix.Mount(backing, dir, "", unix.MS_BIND, ""); err != nil {
					return nil, fmt.Errorf("bind %s: %w", dir, err)
				}
			}
			busybox, err := harness.Busybox()
			if err != nil {
				return nil, err
			}
			if docker, err = b.StartDocker(); err != nil {
				return nil, err
			}
			if containerd, err = b.StartContainerd(); err != nil {
				return nil, errors.Join(err, docker.Stop())
			}
			return func() error {
				return errors.Join(containerd.Stop(), docker.Stop(), unix.Unmount(store, unix.MNT_DETACH), unix.Unmount(runs, unix.MNT_DETACH))
			}, errors.Join(docker.Import(busybox.Tar, image), containerd.Import(busybox.Archive))
		},
	})
}

// posixcheck builds the program that says what a file system answers; in the box there is no compiler any more.
func posixcheck() (string, error) {
	const name = "posixcheck"
	repo, err := harness.RepoRoot()
	if err != nil {
		return "", err
	}
	recipe := ""
	for _, file := range []string{"integration/layers/posixcheck/main.go", "integration/layers/posixcheck/checks.go", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(repo, file))
		if err != nil {
			return "", err
		}
		recipe += string(data)
	}
	dir, err := harness.Cached(name, recipe, func(dir string) error {
		build := osexec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), "./integration/layers/"+name)
		build.Dir, build.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, out)
		}
		return nil
	})
	return filepath.Join(dir, name), err
}

// folder makes a folder of the host with files in it.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := box.TempDir(t)
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// listing is a folder as text: names, kinds, modes, contents.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(&b, "%s %v", rel, info.Mode())
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", data)
		case info.Mode()&os.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			fmt.Fprintf(&b, " -> %s", target)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// overlaid mounts a folder on /job and asks for an overlay and transactions.
func overlaid(dir string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/job", Type: "bind", Source: dir, Options: []string{"rbind", "rw"}})
		s.Process.Cwd = "/job"
		s.Annotations = map[string]string{"agentsafe.dev/workspace": "overlay", "agentsafe.dev/transaction": "auto"}
	}
}

// ctl runs agentsafectl.
func ctl(t *testing.T, args ...string) harness.Result {
	t.Helper()
	return box.Run(t, harness.Cmd{Args: append([]string{control(t)}, args...)})
}

func mustCtl(t *testing.T, args ...string) string {
	t.Helper()
	r := ctl(t, args...)
	if r.Exit != 0 {
		t.Fatalf("want success:\n%v", r)
	}
	return r.Stdout
}

func control(t *testing.T) string {
	t.Helper()
	_, agentsafe := harness.Peers(t)
	return filepath.Join(filepath.Dir(agentsafe.Path), "agentsafectl")
}

// transaction is what log --json prints.
type transaction struct {
	N         int      `json:"n"`
	Command   []string `json:"command"`
	Exit      *int     `json:"exit"`
	Status    string   `json:"status"`
	Changes   int      `json:"changes"`
	Conflicts []struct{ Path, Reason string }
}

func history(t *testing.T, id string) []transaction {
	t.Helper()
	var out []transaction
	if err := json.Unmarshal([]byte(mustCtl(t, "log", "--json", id)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}
