package audit

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// write makes a log of n records, finished with a close.
func write(t testing.TB, n int, o Options) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	w, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := w.Append(TypeExec, map[string]any{"argv": []string{"sh", "-c", "echo " + fmt.Sprint(i)}, "pid": i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Append(TypeClose, struct{}{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestVerify(t *testing.T) {
	dir := write(t, 100, Options{SegmentBytes: 4 << 10})
	r, err := Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) > 0 || r.Records != 101 || !r.Closed || len(r.Segments) < 3 {
		t.Errorf("an intact log: %+v", r)
	}
	n := 0
	if err := Read(dir, func(*Record, []byte) error { n++; return nil }); err != nil || n != 101 {
		t.Errorf("read %d records, %v", n, err)
	}
}

// TestVerify_Tampering changes one file of a log in each way that an attacker would, and wants it found at that place.
func TestVerify_Tampering(t *testing.T) {
	for name, c := range map[string]struct {
		change func(lines [][]byte) [][]byte
		line   int // where it is found, from 1
		text   string
	}{
		"changed": {func(l [][]byte) [][]byte {
			l[9] = bytes.Replace(l[9], []byte("echo"), []byte("true"), 1)
			return l
		}, 11, "does not continue record 10"},
		"removed":    {func(l [][]byte) [][]byte { return slices.Delete(l, 9, 10) }, 10, "1 records before it are missing"},
		"re-ordered": {func(l [][]byte) [][]byte { l[9], l[10] = l[10], l[9]; return l }, 10, "moved"},
		"inserted":   {func(l [][]byte) [][]byte { return slices.Insert(l, 9, bytes.Clone(l[8])) }, 10, "moved here or repeated"},
		"torn":       {func(l [][]byte) [][]byte { l[len(l)-2] = l[len(l)-2][:20]; return l[:len(l)-1] }, 21, "torn"},
		"no JSON":    {func(l [][]byte) [][]byte { l[9] = append(bytes.Clone(l[9][:len(l[9])-1]), '!'); return l }, 10, "not a record"},
		"empty line": {func(l [][]byte) [][]byte { l[9] = nil; return l }, 10, "not a record"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, 20, Options{})
			file := filepath.Join(dir, segmentName(1))
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines := c.change(bytes.Split(data, []byte("\n")))
			if err := os.WriteFile(file, bytes.Join(lines, []byte("\n")), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Verify(dir)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Findings) == 0 || r.Findings[0].Line != c.line || !strings.Contains(r.Findings[0].What, c.text) {
				t.Errorf("found %v, want line %d: %s", r.Findings, c.line, c.text)
			}
			if len(r.Findings) > 3 {
				t.Errorf("one change makes %d findings", len(r.Findings))
			}
		})
	}
}

func TestVerify_MissingFile(t *testing.T) {
	dir := write(t, 100, Options{SegmentBytes: 4 << 10})
	if err := os.Remove(filepath.Join(dir, segmentName(2))); err != nil {
		t.Fatal(err)
	}
	r, err := Verify(dir)
	if err != nil || len(r.Findings) == 0 || r.Findings[0].File != segmentName(2) {
		t.Errorf("found %+v, %v; want %s missing", r, err, segmentName(2))
	}
}

func TestStatement(t *testing.T) {
	dir := write(t, 20, Options{})
	keys := t.TempDir()
	public, err := GenerateKey(keys)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := GenerateKey(keys); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second key: %v, want a refusal", err)
	}
	signer, err := LoadSigner(keys)
	if err != nil {
		t.Fatal(err)
	}
	w, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := Sign(NewStatement(w, &Predicate{Container: Container{ID: "x", Profile: "agent"}}), signer)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteEnvelope(w, e); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if e, err = ReadEnvelope(dir); err != nil {
		t.Fatal(err)
	}
	s, err := e.Open(public)
	if err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		r, err := Verify(dir)
		if err != nil {
			t.Fatal(err)
		}
		found, err := s.Matches(dir, r)
		if text := fmt.Sprint(found); err != nil || (want == "") != (len(found) == 0) || !strings.Contains(text, want) {
			t.Errorf("found %v, %v; want %q", found, err, want)
		}
	}
	check("")
	file := filepath.Join(dir, segmentName(1))
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	// What the chain alone can't tell: the end is cut off, or the last record was changed.
	if err := os.WriteFile(file, bytes.Join(lines[:15], nil), 0o600); err != nil {
		t.Fatal(err)
	}
	check("was cut")
	lines[20] = bytes.Replace(lines[20], []byte(`"data":{}`), []byte(`"data":{"x":1}`), 1)
	if err := os.WriteFile(file, bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	check("not the record that was signed")

	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Open(other); !errors.Is(err, ErrSignature) {
		t.Errorf("another key: %v, want ErrSignature", err)
	}
	e.Payload = bytes.Replace(e.Payload, []byte(`"agent"`), []byte(`"other"`), 1)
	if _, err := e.Open(public); !errors.Is(err, ErrSignature) {
		t.Errorf("a changed statement: %v, want ErrSignature", err)
	}
}

func TestLoadSigner_RefusesReadableKeys(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadSigner(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no key: %v, want os.ErrNotExist", err)
	}
	if _, err := GenerateKey(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, KeyFile), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSigner(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others can read: %v, want a refusal", err)
	}
}

func TestSigner_Command(t *testing.T) {
	dir := t.TempDir()
	script := `{"command": ["/bin/sh", "-c", "n=$(wc -c); printf '{\"keyid\": \"k%d\", \"sig\": \"AAAA\"}' $n"]}`
	if err := os.WriteFile(filepath.Join(dir, SignerFile), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := LoadSigner(dir)
	if err != nil {
		t.Fatal(err)
	}
	sig, id, err := s.Sign([]byte("12345"))
	if err != nil || id != "k5" || len(sig) != 3 {
		t.Errorf("signature %x by %q, %v", sig, id, err)
	}
}

func TestWriter_One(t *testing.T) {
	dir := t.TempDir()
	w, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrBusy) {
		t.Errorf("a second writer: %v, want ErrBusy", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(TypeExec, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
}

// TestWriter_Torn cuts a log at every byte of its last record, as a crash might.
func TestWriter_Torn(t *testing.T) {
	dir := write(t, 3, Options{})
	file := filepath.Join(dir, segmentName(1))
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	for cut := last; cut < len(data); cut++ {
		if err := os.WriteFile(file, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := Open(dir, Options{})
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if err := w.Append(TypeExit, map[string]int{"status": 0}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		want := uint64(5) // three, what was recovered, the new one
		if cut == last {
			want = 4 // nothing was torn
		}
		if r, err := Verify(dir); err != nil || len(r.Findings) > 0 || r.Records != want {
			t.Fatalf("cut at %d: %+v, %v; want %d records", cut, r, err, want)
		}
	}
}

// TestWriter_Gap makes writing fail for a while.
func TestWriter_Gap(t *testing.T) {
	dir := t.TempDir()
	w, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(TypeStart, 1); err != nil {
		t.Fatal(err)
	}
	good := w.file
	if w.file, err = os.Open("/dev/null"); err != nil { // can't be written
		t.Fatal(err)
	}
	for range 3 {
		if err := w.Append(TypeExec, 1); err == nil {
			t.Fatal("a record that can't be written is no error")
		}
	}
	w.file.Close()
	w.file = good
	if err := w.Append(TypeExec, 2); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Verify(dir)
	if err != nil || len(r.Findings) > 0 || r.Records != 3 || r.Gaps != 1 {
		t.Errorf("%+v, %v; want 3 records, one of them a gap", r, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, segmentName(1)))
	if err != nil || !strings.Contains(string(data), `"dropped":3`) {
		t.Errorf("%s, %v; want 3 dropped", data, err)
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"curl|-H|Authorization: Bearer abcdef":        "curl|-H|Authorization: Bearer [redacted 6 bytes]",
		"x|--password|hunter2|y":                      "x|--password|[redacted 7 bytes]|y",
		"x|--api-key=abc":                             "x|--api-key=[redacted 3 bytes]",
		"sh|-c|GITHUB_TOKEN=abc git push":             "sh|-c|GITHUB_TOKEN=[redacted 3 bytes] git push",
		"git|clone|https://u:secret@example.org/x":    "git|clone|https://u:[redacted 6 bytes]@example.org/x",
		"git|clone|https://tok@example.org/x":         "git|clone|https://[redacted 3 bytes]@example.org/x",
		"echo|ghp_0123456789abcdefghij":               "echo|[redacted 24 bytes]",
		"make|test|-j4":                               "make|test|-j4",
		"git|log|--format=%an <%ae>":                  "git|log|--format=%an <%ae>",
		"tokenize|--verbose|file":                     "tokenize|--verbose|file",
		"sh|-c|curl -H 'authorization: Token abc' x/": "sh|-c|curl -H 'authorization: Token [redacted 3 bytes]' x/",
	} {
		if got := strings.Join(Redact(strings.Split(in, "|")), "|"); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}

// BenchmarkVerify verifies a record: a million have to take at most five seconds.
func BenchmarkVerify(b *testing.B) {
	dir := write(b, b.N, Options{})
	b.ResetTimer()
	if r, err := Verify(dir); err != nil || len(r.Findings) > 0 {
		b.Fatal(r, err)
	}
}

func BenchmarkAppend(b *testing.B) {
	write(b, b.N, Options{})
}

func FuzzParseHead(f *testing.F) {
	line, err := appendRecord(nil, 7, genesisHash(), time.Unix(1, 0), TypeExec, []byte("{}"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte(`{"seq":18446744073709551615,"prev":"`))
	f.Fuzz(func(t *testing.T, line []byte) {
		seq, prev, ok := parseHead(line)
		if ok && !bytes.Contains(line, []byte(prev.String())) && !bytes.Contains(bytes.ToLower(line), []byte(prev.String())) {
			t.Errorf("%d %s is not in %q", seq, prev, line)
		}
		recordType(line)
	})
}
