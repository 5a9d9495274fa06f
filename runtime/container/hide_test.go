package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/profiles"
)

// hideStage is a root file system and a workspace on /job.
func hideStage(t *testing.T) (*creation, string) {
	t.Helper()
	root, work := t.TempDir(), t.TempDir()
	for _, f := range []string{root + "/home/a/.ssh/key", root + "/home/b/.ssh/key", root + "/app/.env", work + "/.env", work + "/sub/deep/.env", work + "/sub/.envrc"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// A link out of the workspace, and one that turns in a circle.
	if err := errors.Join(os.Symlink("/", work+"/out"), os.Symlink(".", work+"/sub/circle")); err != nil {
		t.Fatal(err)
	}
	open := func(p string) *os.File {
		f, err := os.OpenFile(p, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	return &creation{
		spec: &specs.Spec{Process: &specs.Process{Cwd: "/job", Env: []string{"HOME=/home/a"}}},
		root: &rootfs.Source{Tree: open(root), Mode: unix.S_IFDIR},
		plan: []rootfs.Mount{{Destination: "/proc"}, {Destination: "/job"}, {Destination: "/etc/hosts"}},
		src:  sources{nil, {Tree: open(work), Mode: unix.S_IFDIR}, {Tree: open(root), Mode: unix.S_IFREG}},
	}, work
}

func TestFindHidden(t *testing.T) {
	cr, _ := hideStage(t)
	for _, c := range []struct{ pattern, want string }{
		{"**/.env", "/job/.env /job/sub/deep/.env"},
		{"/**/.env", "/app/.env /job/.env /job/sub/deep/.env"},
		{"/home/*/.ssh", "/home/a/.ssh /home/b/.ssh"},
		{"~/.s*h", "/home/a/.ssh"},
		{"/job/sub/**/.env", "/job/sub/deep/.env"},
		{"/jo?", "/job"},
		{"/nowhere/*.x", ""},
	} {
		got, err := cr.findHidden(&profiles.Profile{Filesystem: profiles.Filesystem{Hide: []string{c.pattern, "/plain"}}})
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %q, want %q", c.pattern, s, c.want)
		}
	}
}

// What can't be looked at in full is an error.
func TestFindHidden_Bounds(t *testing.T) {
	cr, work := hideStage(t)
	hide := func(pattern string) error {
		_, err := cr.findHidden(&profiles.Profile{Filesystem: profiles.Filesystem{Hide: []string{pattern}}})
		return err
	}
	for i := range maxHidden + 1 {
		if err := os.WriteFile(fmt.Sprintf("%s/%d.pem", work, i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := hide("**/*.pem"); err == nil || !strings.Contains(err.Error(), "matches more than") {
		t.Errorf("many matches: %v", err)
	}
	if err := os.MkdirAll(work+strings.Repeat("/d", maxHideDepth+2), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := hide("**/.env"); err == nil || !strings.Contains(err.Error(), "deeper than") {
		t.Errorf("deep: %v", err)
	}
}
