package layers

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// comparison is how one folder differs from another.
func comparison(t *testing.T, from, to string) *layer.Comparison {
	t.Helper()
	var roots [2]tree.Root
	for i, dir := range []string{from, to} {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		roots[i] = tree.NewRoot(f)
	}
	changes, err := tree.List(roots[1], roots[0], tree.ListOptions{AnyOverlay: true, Whole: map[string]bool{"": true}})
	if err != nil {
		t.Fatal(err)
	}
	w := layer.Workspace{Destination: "/job"}
	return &layer.Comparison{List: []layer.Compared{{Workspace: w, Old: roots[0], New: roots[1], Changes: changes}}}
}

// TestExportForTools gives what is exported to the tools that it is for: git am and git apply make the changed folder of the
// old one, and umoci takes the layer into an image and unpacks it.
func TestExportForTools(t *testing.T) {
	dir := t.TempDir()
	run := func(in, name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = in
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "HOME="+dir, "TMPDIR="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	old, changed := filepath.Join(dir, "old"), filepath.Join(dir, "new")
	run(dir, "sh", "-c", `mkdir old && cd old && printf 'one\ntwo\n' >a && printf '\0\1' >binary && echo gone >gone && echo x >'with space' && echo r >r
cp -r . ../new && cd ../new && echo three >>a && printf '\0\2\3' >binary && rm gone && echo y >>'with space' && mkdir d && echo From here >d/new && chmod 755 r && ln -s a link`)
	write := func(format string) string {
		t.Helper()
		var b bytes.Buffer
		if err := export(&b, comparison(t, old, changed), format, "4f1c\n\x1b[2J@2"); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, format)
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	repository := func(name string) string {
		run(dir, "sh", "-c", "cp -r old "+name+" && cd "+name+" && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm old")
		return filepath.Join(dir, name)
	}
	applied := repository("applied")
	run(applied, "git", "apply", "--index", write("patch"))
	run(dir, "diff", "-r", "--no-dereference", "--exclude=.git", applied, changed)
	mailed := repository("mailed")
	run(mailed, "git", "-c", "user.name=a", "-c", "user.email=a@b", "am", "-q", write("git"))
	run(dir, "diff", "-r", "--no-dereference", "--exclude=.git", mailed, changed)
	if _, err := exec.LookPath("umoci"); err != nil {
		t.Skip("probe umoci: ", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("probe root: umoci unpacks owners")
	}
	run(dir, "umoci", "init", "--layout", "image")
	run(dir, "umoci", "new", "--image", "image:x")
	run(dir, "sh", "-c", "mkdir base && mkdir base/job && cp -r old/. base/job && tar -C base -cf base.tar .")
	run(dir, "umoci", "raw", "add-layer", "--image", "image:x", "base.tar")
	run(dir, "umoci", "raw", "add-layer", "--image", "image:x", write("oci-layer"))
	run(dir, "umoci", "unpack", "--image", "image:x", "bundle")
	run(dir, "diff", "-r", "--no-dereference", "bundle/rootfs/job", changed)
}
