package patch

import (
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func lines(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "%d\n", i)
	}
	return b.String()
}

// git runs git without anybody's configuration.
func git(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.test", "-c", "core.autocrlf=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "LC_ALL=C")
	out, err := cmd.Output()
	return string(out), err
}

// apply applies a patch to a tree of contents by path.
func apply(tree map[string]string, files []File) (map[string]string, error) {
	out := map[string]string{}
	maps.Copy(out, tree)
	for i := range files {
		if f := &files[i]; f.Old != "" && f.Old != f.New && !f.Copy {
			delete(out, f.Old)
		}
	}
	for i := range files {
		f := &files[i]
		data, err := f.Apply(tree[f.Old])
		if err != nil {
			return nil, err
		}
		if f.New != "" {
			out[f.New] = data
		}
	}
	return out, nil
}

// TestApply_AsGit makes random changes, has git write the patch, and wants what git has.
func TestApply_AsGit(t *testing.T) {
	r := rand.New(rand.NewSource(7))
	for i := range 12 {
		dir := t.TempDir()
		write := func(name, data string) {
			p := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(data), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		read := func() map[string]string {
			out := map[string]string{}
			names, err := git(t, dir, "ls-files", "-z")
			if err != nil {
				t.Fatal(err)
			}
			for n := range strings.SplitSeq(strings.Trim(names, "\x00"), "\x00") {
				data, err := os.ReadFile(filepath.Join(dir, n))
				if err != nil {
					t.Fatal(err)
				}
				out[n] = string(data)
			}
			return out
		}
		must := func(args ...string) string {
			out, err := git(t, dir, args...)
			if err != nil {
				t.Fatalf("git %q: %v", args, err)
			}
			return out
		}
		must("init", "-q")
		blob := make([]byte, 3000+r.Intn(3000))
		r.Read(blob)
		write("text", lines(1, 200))
		write("gone", lines(1, 20))
		write("with space/näme\t\"quoted\"", lines(1, 50)+"no end")
		write("moved", lines(100, 300))
		write("empty", "")
		write("blob", string(blob))
		must("add", "-A")
		must("commit", "-qm", "one")
		before := read()
		changed := strings.SplitAfter(before["text"], "\n")
		for range 1 + r.Intn(9) {
			k := r.Intn(len(changed) - 1)
			switch r.Intn(3) {
			case 0:
				changed[k] = "changed\n"
			case 1:
				changed[k] = ""
			default:
				changed[k] += "added\n"
			}
		}
		write("text", strings.Join(changed, ""))
		write("with space/näme\t\"quoted\"", lines(1, 48)+"x\ny no end")
		blob[r.Intn(len(blob))] ^= 1
		write("blob", string(blob))
		write("new/deep", "n")
		write("new/empty", "")
		write("new/blob", "\x00\x01"+string(blob[:60]))
		must("rm", "-q", "gone", "empty")
		must("mv", "moved", "elsewhere")
		write("elsewhere", before["moved"]+"more\n")
		must("add", "-A")
		args := []string{"diff", "--cached", "--binary", "-M", "HEAD"}
		if i%3 == 1 {
			args = append(args, "--no-renames", "-U1")
		}
		files, err := Parse(must(args...))
		if err != nil {
			t.Fatal(err)
		}
		got, err := apply(before, files)
		if err != nil {
			t.Fatal(err)
		}
		want := read()
		for p, c := range want {
			if g, ok := got[p]; !ok || g != c {
				t.Errorf("round %d: %q differs", i, p)
			}
		}
		if len(got) != len(want) {
			t.Errorf("round %d: %d files, want %d", i, len(got), len(want))
		}
	}
}

func TestApply_Drift(t *testing.T) {
	const p = "--- a/f\n+++ b/f\n@@ -10,3 +10,3 @@\n 10\n-11\n+eleven\n 12\n"
	files, err := Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := files[0].Apply("x\ny\n" + lines(1, 30))
	if want := "x\ny\n" + strings.Replace(lines(1, 30), "11\n", "eleven\n", 1); err != nil || got != want {
		t.Errorf("%q %v", got, err)
	}
	if _, err := files[0].Apply(lines(1, 10)); !errors.Is(err, ErrNoMatch) {
		t.Errorf("a hunk that is nowhere: %v", err)
	}
}

func TestParse_Refusals(t *testing.T) {
	const hunk = "@@ -1 +1 @@\n-a\n+b\n"
	zlibBomb := "diff --git a/f b/f\nnew file mode 100644\nGIT binary patch\nliteral 10\n" + "zcmV;" + "\n\n"
	for name, c := range map[string]struct{ patch, want string }{
		"nothing":              {"hello\n", "no file"},
		"out by ..":            {"--- a/../x\n+++ b/../x\n" + hunk, "beneath"},
		"out by quoting":       {"--- \"a/\\056\\056/x\"\n+++ \"b/\\056\\056/x\"\n" + hunk, "beneath"},
		"absolute":             {"--- //etc/passwd\n+++ //etc/passwd\n" + hunk, "beneath"},
		"renamed out":          {"diff --git a/f b/g\nrename from f\nrename to ../g\n", "beneath"},
		"without a directory":  {"--- f\n+++ f\n" + hunk, "in front of it"},
		"a submodule":          {"diff --git a/m b/m\nnew file mode 160000\n--- /dev/null\n+++ b/m\n" + hunk, "mode"},
		"a set-id program":     {"diff --git a/m b/m\nold mode 100755\nnew mode 104755\n", "mode"},
		"written twice":        {strings.Repeat("--- a/f\n+++ b/f\n"+hunk, 2), "twice"},
		"a cut hunk":           {"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n", "ends within"},
		"a lying hunk":         {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n-b\n+c\n", "other lines"},
		"an empty hunk":        {"--- a/f\n+++ b/f\n@@ -0,0 +0,0 @@\n", "other lines"},
		"a text without hunks": {"--- a/f\n+++ b/f\n", "without hunks"},
		"a binary of words":    {"diff --git a/f b/f\nBinary files a/f and b/f differ\n", "--binary"},
		"a huge binary":        {"diff --git a/f b/f\nGIT binary patch\nliteral 99999999999\nA0000\n\n", "at most"},
		"a damaged binary":     {zlibBomb, "damaged"},
		"a huge range":         {"--- a/f\n+++ b/f\n@@ -1 +1,999999999999 @@\n-a\n+b\n", "range"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(c.patch); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// TestAttack_InflatedBinary gives a patch that says ten bytes and inflates to much more.
func TestAttack_InflatedBinary(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	text, _ := git(t, dir, "diff", "--no-index", "--binary", "/dev/null", "f") // exits with 1: they differ
	bomb := strings.Replace(text, fmt.Sprintf("literal %d\n", 8<<20), "literal 10\n", 1)
	if bomb == text {
		t.Fatalf("not the patch that was expected: %.200q", text)
	}
	if _, err := Parse(bomb); err == nil || !strings.Contains(err.Error(), "another length") {
		t.Errorf("%v", err)
	}
}

func FuzzPatch(f *testing.F) {
	f.Add("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "a\n")
	f.Add("diff --git a/f b/f\nold mode 100644\nnew mode 100755\n", "")
	f.Add("diff --git a/f b/g\nrename from f\nrename to g\n", "x")
	f.Add("diff --git a/f b/f\nindex 1..2\nGIT binary patch\ndelta 5\nMcmZo*WMBXQ0096106+i$\n\n", "abc")
	f.Add("--- \"a/\\303\\244\"\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n\\ No newline at end of file\n", "a")
	f.Fuzz(func(t *testing.T, text, old string) {
		files, err := Parse(text)
		if err != nil {
			return
		}
		for i := range files {
			p := &files[i]
			for _, name := range []string{p.Old, p.New} {
				if name != "" && (!filepath.IsLocal(name) || filepath.Clean(name) != name) {
					t.Errorf("the name %q", name)
				}
			}
			if got, err := p.Apply(old); err == nil && p.New == "" && got != "" {
				t.Errorf("a deleted file has the content %q", got)
			}
		}
	})
}
