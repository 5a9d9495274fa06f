package layers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestImport takes what one task has changed to another's workspace, while that runs and after it is gone, and back again.
func TestImport(t *testing.T) {
	d := bare(t)
	var numbered strings.Builder
	for i := range 40 {
		fmt.Fprintf(&numbered, "line %d\n", i)
	}
	files := map[string]string{"f": numbered.String(), "gone/only": "g\n", "keep/k": "k\n", "bin": "\x00\x01\x02", "old": strings.Repeat("moved\n", 30)}
	one := folder(t, files)
	from := up(t, d, one, nil)
	exec(t, d, from, `sed -i 20s/.*/three/ f; rm -r gone; mkdir -p new/deep; printf '#!/bin/sh\n' >new/deep/run; chmod 755 new/deep/run
		ln -s deep/run new/link; printf '\0\3' >bin; : >empty; mv old new/moved; chmod 700 keep/k`)
	text := mustCtl(t, "export", from)
	file := filepath.Join(box.TempDir(t), "p.patch")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	// The other workspace belongs to somebody, and has changed a little.
	files["f"] = "first\n" + files["f"]
	two := folder(t, files)
	box.MustRun(t, "chown", "-R", "1234:4321", two)
	before := listing(t, two)
	to := up(t, d, two, nil)
	if got := mustCtl(t, "import", to, file); !strings.HasPrefix(got, "imported as transaction 1: committed, ") {
		t.Fatal(got)
	}
	const look = "ls -R | grep -v '^$'; sed -n 21p f; new/link; stat -c '%a %u:%g' new new/deep/run new/link keep/k f; od -An -tx1 bin"
	want := ".:\nbin\nempty\nf\nkeep\nnew\n./keep:\nk\n./new:\ndeep\nlink\nmoved\n./new/deep:\nrun\nthree\n" +
		"755 1234:4321\n755 1234:4321\n777 1234:4321\n755 1234:4321\n644 1234:4321\n 00 03"
	if got := exec(t, d, to, look); got != want {
		t.Errorf("imported:\n%s\nwant:\n%s", got, want)
	}
	if r := ctl(t, "import", to, file); r.Exit == 0 || !strings.Contains(r.Stderr, "does not apply") {
		t.Errorf("a patch that is applied already:\n%v", r)
	}
	mustCtl(t, "undo", to+"@1")
	if got := exec(t, d, to, "head -4 f; ls"); got != "first\nline 0\nline 1\nline 2\nbin\nf\ngone\nkeep\nold" {
		t.Errorf("undone: %q", got)
	}
	if now := listing(t, two); now != before {
		t.Errorf("the host's folder has changed:\n%s", now)
	}

	d.Must(t, "delete", "--force", to)
	r := box.Run(t, harness.Cmd{Args: []string{control(t), "import", to}, Stdin: text})
	if r.Exit != 0 || !strings.Contains(r.Stdout, "committed") {
		t.Fatalf("after the container is gone:\n%v", r)
	}
	mustCtl(t, "promote", to)
	if now := listing(t, two); !strings.Contains(now, "new/link Lrwxrwxrwx -> deep/run\n") || strings.Contains(now, "gone") || !strings.Contains(now, "three") {
		t.Errorf("promoted:\n%s", now)
	}
}

// TestAttack_ImportThroughSymlink gives a patch that writes below a link which the task has made.
func TestAttack_ImportThroughSymlink(t *testing.T) {
	d := bare(t)
	outside := folder(t, map[string]string{"f": "1\n"})
	id := up(t, d, folder(t, map[string]string{"a": "1\n"}), nil)
	exec(t, d, id, "ln -s "+outside+" link; ln -s "+outside+"/f file; mkfifo pipe; mkdir dir")
	for name, patch := range map[string]string{
		"below a link":       "diff --git a/link/new b/link/new\nnew file mode 100644\n--- /dev/null\n+++ b/link/new\n@@ -0,0 +1 @@\n+x\n",
		"a file of a link":   "--- a/link/f\n+++ b/link/f\n@@ -1 +1 @@\n-1\n+2\n",
		"through a link":     "diff --git a/file b/file\nindex 1..2 100644\n--- a/file\n+++ b/file\n@@ -1 +1 @@\n-1\n+2\n",
		"a pipe":             "--- a/pipe\n+++ b/pipe\n@@ -1 +1 @@\n-1\n+2\n",
		"over a directory":   "diff --git a/dir b/dir\nnew file mode 100644\n--- /dev/null\n+++ b/dir\n@@ -0,0 +1 @@\n+x\n",
		"rename over a file": "diff --git a/a b/file\nrename from a\nrename to file\n",
	} {
		if r := box.Run(t, harness.Cmd{Args: []string{control(t), "import", id}, Stdin: patch}); r.Exit == 0 {
			t.Errorf("%s: %v", name, r)
		}
	}
	if now := listing(t, outside); strings.Contains(now, "new") || !strings.Contains(now, `"1\n"`) {
		t.Errorf("outside:\n%s", now)
	}
	for _, tx := range history(t, id)[1:] {
		t.Errorf("a transaction is left: %+v", tx)
	}
}
