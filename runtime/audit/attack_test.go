package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// about makes a signed log about a container, in several files.
func about(t *testing.T, id string, keys string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), id)
	w, err := Open(dir, Options{SegmentBytes: 2 << 10})
	if err != nil {
		t.Fatal(err)
	}
	err = w.Append(TypeCreate, Container{ID: id, Created: time.Unix(1e9, 5).UTC()})
	for i := range 30 {
		err = errors.Join(err, w.Append(TypeExec, map[string]any{"argv": []string{id, fmt.Sprint(i)}, "pid": i}))
	}
	err = errors.Join(err, w.Append(TypeClose, struct{}{}))
	signer, serr := LoadSigner(keys)
	if err = errors.Join(err, serr); err != nil {
		t.Fatal(err)
	}
	e, err := Sign(NewStatement(w, &Predicate{Container: Container{ID: id}}), signer)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(WriteEnvelope(w, e), w.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func copyFile(t *testing.T, to, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAttack_Log does to a signed log what somebody would who can write its directory and has another container's log
// beside it, and wants to know where it shows. Nothing of it may take long, or need more than a line's memory.
func TestAttack_Log(t *testing.T) {
	keys := t.TempDir()
	public, err := GenerateKey(keys)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		attack func(t *testing.T, dir, other string) error
		file   string
		text   string // of the finding, or of the statement's error
	}{
		"another container's file spliced in": {func(t *testing.T, dir, other string) error {
			copyFile(t, filepath.Join(dir, segmentName(2)), filepath.Join(other, segmentName(2)))
			return nil
		}, segmentName(2), "does not continue record"},
		"another container's statement": {func(t *testing.T, dir, other string) error {
			copyFile(t, filepath.Join(dir, StatementFile), filepath.Join(other, StatementFile))
			return nil
		}, "", "not the record that was signed"},
		"another container's log under this statement": {func(t *testing.T, dir, other string) error {
			names, err := segmentNames(other)
			for _, n := range names {
				copyFile(t, filepath.Join(dir, n), filepath.Join(other, n))
			}
			return err
		}, "", "not the record that was signed"},
		"the last file removed": {func(_ *testing.T, dir, _ string) error {
			names, err := segmentNames(dir)
			return errors.Join(err, os.Remove(filepath.Join(dir, names[len(names)-1])))
		}, "", "were signed: it was cut"},
		"the first file removed": {func(_ *testing.T, dir, _ string) error {
			return os.Remove(filepath.Join(dir, segmentName(1)))
		}, segmentName(1), "the file is missing"},
		"a file cut in the middle of a record": {func(_ *testing.T, dir, _ string) error {
			return os.Truncate(filepath.Join(dir, segmentName(1)), 1000)
		}, segmentName(1), "torn"},
		"two files exchanged": {func(_ *testing.T, dir, _ string) error {
			one, two := filepath.Join(dir, segmentName(1)), filepath.Join(dir, segmentName(2))
			return errors.Join(os.Rename(one, one+"x"), os.Rename(two, one), os.Rename(one+"x", two))
		}, segmentName(1), "records before it are missing, or it was moved here"},
		"a link in place of a file": {func(_ *testing.T, dir, other string) error {
			file := filepath.Join(dir, segmentName(2))
			return errors.Join(os.Remove(file), os.Symlink(filepath.Join(other, segmentName(2)), file))
		}, segmentName(2), "symbolic link"},
		"a FIFO in place of a file": {func(_ *testing.T, dir, _ string) error {
			file := filepath.Join(dir, segmentName(2))
			return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600))
		}, segmentName(2), "not a regular file"},
		"a directory in place of a file": {func(_ *testing.T, dir, _ string) error {
			file := filepath.Join(dir, segmentName(2))
			return errors.Join(os.Remove(file), os.Mkdir(file, 0o700))
		}, segmentName(2), "not a regular file"},
		"a line without end": {func(_ *testing.T, dir, _ string) error {
			return os.WriteFile(filepath.Join(dir, segmentName(2)), bytes.Repeat([]byte{' '}, 8<<20), 0o600)
		}, segmentName(2), "longer than"},
		"a record added behind the end": {func(_ *testing.T, dir, _ string) error {
			w, err := Open(dir, Options{})
			if err != nil {
				return err
			}
			return errors.Join(w.Append(TypeExec, map[string]any{"argv": []string{"never"}}), w.Close())
		}, "", "behind the one that closes the log"},
		"a FIFO in place of the statement": {func(_ *testing.T, dir, _ string) error {
			file := filepath.Join(dir, StatementFile)
			return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600))
		}, "", "not a regular file"},
		"a link in place of the statement": {func(_ *testing.T, dir, other string) error {
			file := filepath.Join(dir, StatementFile)
			return errors.Join(os.Remove(file), os.Symlink(filepath.Join(other, StatementFile), file))
		}, "", "symbolic link"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, other := about(t, "mine", keys), about(t, "hers", keys)
			if err := c.attack(t, dir, other); err != nil {
				t.Fatal(err)
			}
			r, err := Verify(dir)
			if err != nil {
				t.Fatal(err)
			}
			found := r.Findings
			e, err := ReadEnvelope(dir)
			if err == nil {
				var s *Statement
				if s, err = e.Open(public); err == nil {
					var more []Finding
					more, err = s.Matches(dir, r)
					found = append(found, more...)
				}
			}
			told := fmt.Sprint(found, err)
			if !strings.Contains(told, c.text) || c.file != "" && (len(found) == 0 || found[0].File != c.file) {
				t.Errorf("found %s, want %q in %q", told, c.text, c.file)
			}
			if len(found) > 4 {
				t.Errorf("one attack makes %d findings: %v", len(found), found)
			}
		})
	}
}

// TestAttack_WriterFollowsLinks: whoever can write the directory of logs can't have the writer fill, or wait for,
// something else.
func TestAttack_WriterFollowsLinks(t *testing.T) {
	target := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(file string) error{
		"link": func(f string) error { return os.Symlink(target, f) },
		"fifo": func(f string) error { return unix.Mkfifo(f, 0o600) },
	} {
		dir := t.TempDir()
		if err := plant(filepath.Join(dir, segmentName(1))); err != nil {
			t.Fatal(err)
		}
		if w, err := Open(dir, Options{}); err == nil {
			w.Close()
			t.Errorf("%s: it was opened", name)
		}
	}
	if data, err := os.ReadFile(target); err != nil || len(data) > 0 {
		t.Errorf("%q, %v: something was written through a link", data, err)
	}
}

// TestVerify_Closed: promotions come behind the end, and a log is complete all the same.
func TestVerify_Closed(t *testing.T) {
	dir := write(t, 3, Options{})
	w, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Append(TypePromotion, map[string]string{"state": "promoted"}), w.Close()); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(dir); err != nil || !r.Closed || len(r.Findings) > 0 || r.Unsigned != "" {
		t.Errorf("%+v, %v; want a closed log", r, err)
	}
	if id, at := LogSubject(dir); id != "" || !at.IsZero() {
		t.Errorf("a log whose first record is no creation is about %q", id)
	}
}
