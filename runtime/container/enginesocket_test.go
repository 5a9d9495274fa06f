package container

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// engineLook makes the test program say what it finds beneath a directory.
const engineLook = "AGENTSAFE_TEST_ENGINE_LOOK"

// TestAttack_EngineBehindUnreadableProc: an ordinary user can't see what an engine of root's holds. Its socket, under any
// name, is refused all the same; the user's own is not.
func TestAttack_EngineBehindUnreadableProc(t *testing.T) {
	if dir := os.Getenv(engineLook); dir != "" {
		lookForEngine(dir)
	}
	if os.Geteuid() != 0 {
		t.Skip("probe root: an engine of somebody else's is needed")
	}
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/self/comm", []byte("dockerd"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile("/proc/self/comm", name, 0) //nolint:errcheck // a name
	// Not below a directory of the test's alone: the user is to reach it.
	dir, err := os.MkdirTemp("/tmp", "engine") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "api")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := lookAs(t, 0, dir); !strings.HasPrefix(got, "dockerd (pid ") {
		t.Errorf("root finds %q", got)
	}
	const nobody = 65534
	if got := lookAs(t, nobody, dir); !strings.Contains(got, "hidden from uid 65534") { // of this one, or of an engine that runs here
		t.Errorf("an ordinary user finds %q", got)
	}
	if err := os.Chown(socket, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if got := lookAs(t, nobody, dir); got != "" {
		t.Errorf("behind a socket of the user's own: %q", got)
	}
}

// lookForEngine prints who listens beneath dir, and ends.
func lookForEngine(dir string) {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	found, err := engineListeners(sources{&rootfs.Source{Tree: f, Path: dir, Mode: unix.S_IFDIR}})
	if err != nil {
		panic(err)
	}
	fmt.Print("found:" + found[0] + "\n")
	os.Exit(0)
}

// lookAs runs lookForEngine as another user.
func lookAs(t *testing.T, uid uint32, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestAttack_EngineBehindUnreadableProc$")
	cmd.Env, cmd.Dir = append(os.Environ(), engineLook+"="+dir), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as uid %d: %v\n%s", uid, err, out)
	}
	_, who, found := strings.Cut(string(out), "found:")
	if !found {
		t.Fatalf("as uid %d: %s", uid, out)
	}
	return strings.TrimSpace(who)
}
