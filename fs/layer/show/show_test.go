package show

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

func TestSafe(t *testing.T) {
	for in, want := range map[string]string{
		"plain":               "plain",
		"tab\tstays":          "tab\tstays",
		"\x1b[2Jgone":         `\x1b[2Jgone`,
		"a\rb":                `a\x0db`,
		"\u202egnp.exe":       `\u202egnp.exe`,
		"zero\u200bwidth":     `zero\u200bwidth`,
		"tag\U000e0041":       `tag\U000e0041`,
		"\u3164filler":        `\u3164filler`,
		"bad\xff":             `bad\xff`,
		"Grüße, 世界":           "Grüße, 世界",
		"\u0085next":          `\u0085next`,
		"nbsp\u00a0":          `nbsp\u00a0`,
		"variation\ufe0f":     `variation\ufe0f`,
		"csi\u009b31m":        `csi\u009b31m`,
		"line\u2028separator": `line\u2028separator`,
	} {
		if got := Safe(in); got != want {
			t.Errorf("Safe(%q) = %q, want %q", in, got, want)
		}
	}
	if a, b := SafeName("a\nb"), SafeName(`a\x0ab`); a == b {
		t.Errorf("two names look the same: %q", a)
	}
}

func FuzzSafe(f *testing.F) {
	f.Add("x\x1b]0;\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Safe(s) {
			if r < ' ' && r != '\t' || r == 0x7f || r >= 0x80 && r <= 0x9f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				t.Errorf("Safe(%q) lets %q through", s, r)
			}
		}
	})
}

func trees(t *testing.T, old, changed map[string]string) (*Comparison, string) {
	t.Helper()
	dir := t.TempDir()
	c := &Comparison{}
	for _, side := range []struct {
		name  string
		files map[string]string
		root  *tree.Root
	}{{"old", old, &c.Old}, {"new", changed, &c.New}} {
		base := filepath.Join(dir, side.name)
		if err := os.Mkdir(base, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range side.files {
			p := filepath.Join(base, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if target, ok := strings.CutPrefix(content, "->"); ok {
				if err := os.Symlink(target, p); err != nil {
					t.Fatal(err)
				}
				continue
			}
			mode := os.FileMode(0o644)
			if rest, ok := strings.CutPrefix(content, "+x"); ok {
				content, mode = rest, 0o755
			}
			if err := os.WriteFile(p, []byte(content), mode); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.Open(base)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		*side.root = tree.NewRoot(f)
	}
	list, err := tree.List(c.New, c.Old, tree.ListOptions{AnyOverlay: true, Whole: map[string]bool{"": true, "d": true}})
	if err != nil {
		t.Fatal(err)
	}
	c.Changes = list
	return c, dir
}

// TestGitTakesPatches applies patches with git and wants the new tree.
func TestGitTakesPatches(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	binary := make([]byte, 5000)
	random.Read(binary)
	var long, edited strings.Builder
	for i := range 500 {
		fmt.Fprintf(&long, "line %d\n", i)
		if random.Intn(20) == 0 {
			fmt.Fprintf(&edited, "changed %d\n", i)
		} else if random.Intn(20) != 0 {
			fmt.Fprintf(&edited, "line %d\n", i)
		}
	}
	c, dir := trees(t, map[string]string{
		"text": "a\nb\nc\n", "no-newline": "x", "gone": "bye\n", "bin": "\x00old", "empty-gone": "", "mode": "#!\n", "link": "->text",
		"long": long.String(), "kind": "file\n", "d/deep/f": "deep\n", "same": "same\n",
	}, map[string]string{
		"text": "a\nB\nc\nd", "no-newline": "x\n", "bin": "\x00" + string(binary), "empty": "", "mode": "+x#!\n", "link": "->long",
		"long": edited.String(), "kind": "->text", "new file": "spaces\n", "tab\tname": "t\n", "quote\"back\\": "q\n", "umläut": "ü\n", "same": "same\n",
	})
	var patch bytes.Buffer
	left, err := c.Patch(&patch, "")
	if err != nil || len(left) > 0 {
		t.Fatal(left, err)
	}
	cmd := exec.Command("git", "apply", "--whitespace=nowarn", "-")
	cmd.Dir, cmd.Stdin = filepath.Join(dir, "old"), &patch
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+dir)
	text := patch.String()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, out, text)
	}
	if out, err := exec.Command("diff", "-r", "--no-dereference", filepath.Join(dir, "old"), filepath.Join(dir, "new")).CombinedOutput(); err != nil {
		t.Errorf("the trees differ: %s", out)
	}
	if st, err := os.Stat(filepath.Join(dir, "old", "mode")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("mode: %v %v", st, err)
	}
}

func TestPatchLeavesGitAlone(t *testing.T) {
	c, _ := trees(t, nil, map[string]string{".git/hooks/x": "evil", "ok": "ok"})
	var patch bytes.Buffer
	left, err := c.Patch(&patch, "")
	if err != nil || len(left) != 1 || strings.Contains(patch.String(), "evil") {
		t.Errorf("%v %v\n%s", left, err, patch.String())
	}
}

func TestUnifiedIsSafe(t *testing.T) {
	c, _ := trees(t, map[string]string{"f": "a\n"}, map[string]string{"f": "a\n\x1b[2J\u202e\n", "n\x1b[31m": "x\n"})
	var b bytes.Buffer
	if err := c.Unified(&b, "/w/", nil); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); strings.ContainsAny(s, "\x1b\u202e") || !strings.Contains(s, `+\x1b[2J\u202e`) {
		t.Errorf("%q", s)
	}
}

func TestTarWhiteouts(t *testing.T) {
	c, _ := trees(t, map[string]string{"gone": "x", "d/f": "x"}, map[string]string{"d/g": "new"})
	var b bytes.Buffer
	w := NewTar(&b)
	if left, err := w.Add(c, TarOptions{Prefix: "work/", Whiteouts: true}); err != nil || len(left) > 0 {
		t.Fatal(left, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if got := strings.Join(names, " "); got != "work/d/g work/d/.wh.f work/.wh.gone" {
		t.Errorf("archive: %s", got)
	}
}

// TestAttack_TarWhiteoutName: a file of a task's whose name would delete another one where an OCI layer is unpacked.
func TestAttack_TarWhiteoutName(t *testing.T) {
	for _, whiteouts := range []bool{true, false} {
		c, _ := trees(t, map[string]string{"kept": "x"}, map[string]string{"kept": "x", ".wh.kept": "", "d/.wh..wh..opq": "", ".wh.d/f": "", "ok.wh.x": ""})
		var b bytes.Buffer
		w := NewTar(&b)
		left, err := w.Add(c, TarOptions{Whiteouts: whiteouts})
		if err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		wanted, names := []string{"ok.wh.x"}, []string{}
		if !whiteouts { // in a plain archive a name is a name
			wanted = []string{".wh.d/f", ".wh.kept", "d/.wh..wh..opq", "ok.wh.x"}
		}
		for r := tar.NewReader(&b); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				names = append(names, h.Name)
			}
		}
		if got, want := strings.Join(names, " "), strings.Join(wanted, " "); got != want {
			t.Errorf("whiteouts %v: archive %s, want %s; left %q", whiteouts, got, want, left)
		}
		if whiteouts && !slices.Contains(left, ".wh.kept") {
			t.Errorf("left out: %q", left)
		}
	}
}
