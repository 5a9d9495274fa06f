package bootstrap

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestGroupOf(t *testing.T) {
	for _, tc := range []struct{ name, config, want, err string }{
		{name: "none", config: `{"annotations": {"a": "b"}}`, want: "id"},
		{name: "sandbox", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": "pod"}}`, want: "pod"},
		{name: "first counts", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": "pod", "io.containerd.runc.v2.group": "g"}}`, want: "g"},
		{name: "only mentioned", config: `{"process": {"args": ["io.kubernetes.cri.sandbox-id"]}}`, want: "id"},
		{name: "empty", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": ""}}`, want: "id"},
		{name: "huge (CVE-2026-47262)", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": "` + strings.Repeat("x", 2000) + `"}}`, err: "2000 bytes"},
		{name: "damaged", config: `{"io.kubernetes.cri.sandbox-id`, err: "config.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := groupOf([]byte(tc.config), "id")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestProfileOfProgramName(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/bin/containerd-shim-agentsafe-v2":         "",
		"/usr/bin/containerd-shim-agentsafe-offline-v2": "offline",
		"containerd-shim-agentsafe-my-own-v2":           "my-own",
		"something":                                     "",
	} {
		if got := profileOf(program); got != want {
			t.Errorf("%s: got %q, want %q", program, got, want)
		}
	}
}

// socketDirOf is short: paths of sockets have 108 bytes.
func socketDirOf(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestListen(t *testing.T) {
	path := filepath.Join(socketDirOf(t), "sock")
	f, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if _, err := listen(path); !errors.Is(err, errInUse) {
		t.Errorf("second shim: got %v", err)
	}
	f.Close() // the shim is killed, its socket stays
	if _, err := net.Dial("unix", path); err == nil {
		t.Fatal("the socket of a dead shim answers")
	}
	f, err = listen(path)
	if err != nil {
		t.Fatalf("after a dead shim: %v", err)
	}
	f.Close()
}

func TestAttack_SocketDirOfAnother(t *testing.T) {
	base := socketDirOf(t)
	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := checkSocketDir(open); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(open); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	if err := checkSocketDir(link); err == nil {
		t.Error("a link is taken for a directory")
	}
	if err := checkSocketDir("relative"); err == nil {
		t.Error("a relative path is taken")
	}
	if os.Geteuid() != 0 {
		t.Skip("probe root: another's directory needs chown(2)")
	}
	foreign := filepath.Join(base, "foreign")
	if err := errors.Join(os.Mkdir(foreign, 0o700), unix.Chown(foreign, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if err := checkSocketDir(foreign); err == nil {
		t.Error("another's directory is taken")
	}
}
