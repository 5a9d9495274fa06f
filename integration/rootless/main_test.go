package rootless

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// user is an ordinary user of the box.
type user struct {
	name string
	uid  int
	// groups beside the user's own; newuidmap has ids for those who have a line in /etc/subuid.
	groups []string
	home   string
}

const (
	// installed is where the programs are in the box: the ones under test may lie where only root looks.
	installed = "/opt/agentsafe-test"
	image     = "busybox:test"
)

var (
	box *harness.Box
	// rick has subordinate ids, solo has none, and is in a group more.
	rick = &user{name: "rick", uid: 4242}
	solo = &user{name: "solo", uid: 4343, groups: []string{"4444"}}
)

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, err := harness.Busybox()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			return endPodman, setUp()
		},
	})
}

// setUp makes the users: the box's /etc and /run are its own.
func setUp() error {
	// A user has to get to what is below.
	if err := os.Chmod(box.Dir, 0o755); err != nil {
		return err
	}
	if err := install(); err != nil {
		return err
	}
	for _, u := range []*user{rick, solo} {
		u.home = filepath.Join(box.Dir, u.name)
		err := errors.Join(
			appendTo("/etc/passwd", fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", u.name, u.uid, u.uid, u.home)),
			appendTo("/etc/group", fmt.Sprintf("%s:x:%d:\n", u.name, u.uid)),
		)
		if err != nil {
			return err
		}
		for _, dir := range []string{u.home, u.project(), u.runtimeDir()} {
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, u.uid, u.uid)); err != nil {
				return err
			}
		}
	}
	const line = "rick:200000:65536\n"
	return errors.Join(os.Chmod("/run/user", 0o755), appendTo("/etc/subuid", line), appendTo("/etc/subgid", line))
}

func install() error {
	runtime, err := harness.RuntimePath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(installed, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"agentsafe", "agentsafectl", "agentsafe-seccomp", "agentsafe-monitor", "agentsafe-gateway"} {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(runtime), name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(installed, name), data, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// endPodman ends the process that Podman keeps for its user.
func endPodman() error {
	data, err := os.ReadFile(filepath.Join(rick.runtimeDir(), "libpod", "tmp", "pause.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return err
	}
	return errors.Join(unix.Kill(pid, unix.SIGKILL), os.RemoveAll(filepath.Join(rick.runtimeDir(), "libpod")),
		os.RemoveAll(filepath.Join(rick.runtimeDir(), "containers")))
}

func (u *user) runtimeDir() string { return "/run/user/" + strconv.Itoa(u.uid) }
func (u *user) project() string    { return filepath.Join(u.home, "project") }

// cmd is a command line of the user's, in the user's project.
func (u *user) cmd(args ...string) harness.Cmd {
	id := strconv.Itoa(u.uid)
	groups := "--clear-groups"
	if len(u.groups) > 0 {
		groups = "--groups=" + strings.Join(u.groups, ",")
	}
	return harness.Cmd{
		Args: append([]string{"setpriv", "--reuid=" + id, "--regid=" + id, groups, "--"}, args...),
		Dir:  u.project(),
		Env: []string{
			"HOME=" + u.home, "USER=" + u.name, "LOGNAME=" + u.name, "XDG_RUNTIME_DIR=" + u.runtimeDir(),
			"PATH=" + installed + ":" + os.Getenv("PATH"),
		},
	}
}

func (u *user) do(t testing.TB, args ...string) harness.Result {
	t.Helper()
	return box.Run(t, u.cmd(args...))
}

func (u *user) must(t testing.TB, args ...string) string {
	t.Helper()
	r := u.do(t, args...)
	if r.Exit != 0 {
		t.Fatalf("want success:\n%v", r)
	}
	return strings.TrimSuffix(r.Stdout, "\n")
}

// folder makes a directory of the user's that lasts as long as the test.
func (u *user) folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(u.home, "t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, u.uid, u.uid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}

func write(t testing.TB, u *user, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, u.uid, u.uid); err != nil {
		t.Fatal(err)
	}
}

func copyTree(t testing.TB, from, to string, u *user) {
	t.Helper()
	out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
	if err == nil {
		out, err = exec.Command("chown", "-R", fmt.Sprintf("%d:%d", u.uid, u.uid), to).CombinedOutput()
	}
	if err != nil {
		t.Fatalf("copy %s: %v: %s", from, err, out)
	}
}
