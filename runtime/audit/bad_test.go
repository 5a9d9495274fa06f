package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestVerify_Clock: the order of records is that of their numbers; a clock that is set back, or far ahead, is no finding.
func TestVerify_Clock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var text []byte
	prev := genesisHash()
	for i, at := range []time.Time{time.Unix(2e9, 1), time.Unix(1, 0), time.Unix(9e9, 5), time.Unix(-5, 0)} {
		line, err := appendRecord(nil, uint64(i+1), prev, at, TypeExec, []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		prev = sha256.Sum256(line)
		text = append(append(text, line...), '\n')
	}
	if err := os.WriteFile(filepath.Join(dir, segmentName(1)), text, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Append(TypeClose, struct{}{}), w.Close()); err != nil {
		t.Fatal(err)
	}
	r, err := Verify(dir)
	if err != nil || len(r.Findings) > 0 || r.Records != 5 || !r.Closed {
		t.Errorf("%+v, %v; want five records in order", r, err)
	}
	var seq uint64
	err = Read(dir, func(rec *Record, _ []byte) error {
		if seq++; rec.Seq != seq {
			t.Errorf("record %d in place %d", rec.Seq, seq)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWriter_OtherProcess: a log has one writer, whichever process has it, and none once that is killed.
func TestWriter_OtherProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	if os.Getenv("AUDIT_TEST_WRITE") != "" {
		w, err := Open(os.Getenv("AUDIT_TEST_WRITE"), Options{})
		if err == nil {
			err = errors.Join(w.Append(TypeStart, struct{}{}), w.Sync())
		}
		fmt.Println("opened", err)
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // until it is killed
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestWriter_OtherProcess$")
	cmd.Env = append(os.Environ(), "AUDIT_TEST_WRITE="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 64)
	n, err := out.Read(said)
	if err != nil || !strings.HasPrefix(string(said[:n]), "opened <nil>") {
		t.Fatalf("%q, %v", said[:n], err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrBusy) {
		t.Errorf("a second writer: %v, want ErrBusy", err)
	}
	cmd.Process.Kill() //nolint:errcheck // its end is waited for
	cmd.Wait()         //nolint:errcheck // it was killed
	w, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Append(TypeClose, struct{}{}), w.Close()); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(dir); err != nil || len(r.Findings) > 0 || r.Records != 2 {
		t.Errorf("%+v, %v; want two records", r, err)
	}
}

// TestSignerProgram is no test: it is the program that TestSigner_Program has sign.
func TestSignerProgram(*testing.T) {
	seed, err := os.ReadFile(os.Getenv("AUDIT_TEST_SEED"))
	if err != nil {
		return
	}
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		os.Exit(1)
	}
	key := ed25519.NewKeyFromSeed(seed)
	json.NewEncoder(os.Stdout).Encode(Signature{KeyID(key.Public().(ed25519.PublicKey)), ed25519.Sign(key, data)}) //nolint:errcheck // the reader tells
	os.Exit(0)
}

// TestSigner_Program has another program sign a statement, and opens it with the public key; and what a signer may do wrong
// is said.
func TestSigner_Program(t *testing.T) {
	dir := t.TempDir()
	seed := bytes.Repeat([]byte{7}, ed25519.SeedSize)
	if err := os.WriteFile(filepath.Join(dir, "seed"), seed, 0o600); err != nil {
		t.Fatal(err)
	}
	sign := func(command ...string) (*Envelope, error) {
		t.Helper()
		text, err := json.Marshal(map[string]any{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, SignerFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := LoadSigner(dir)
		if err != nil {
			return nil, err
		}
		log := write(t, 3, Options{})
		w, err := Open(log, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		return Sign(NewStatement(w, &Predicate{Container: Container{ID: "x"}}), s)
	}
	e, err := sign("/usr/bin/env", "AUDIT_TEST_SEED="+filepath.Join(dir, "seed"), os.Args[0], "-test.run=^TestSignerProgram$")
	if err != nil {
		t.Fatal(err)
	}
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	if s, err := e.Open(public); err != nil || s.Predicate.Container.ID != "x" || e.Signatures[0].KeyID != KeyID(public) {
		t.Errorf("%+v, %v", s, err)
	}
	for want, command := range map[string][]string{
		"absolute path": {"sign"}, "exit status 3": {"/bin/sh", "-c", "exit 3"}, "no such file": {"/nowhere/sign"}, "read the answer": {"/bin/echo", "no JSON"},
	} {
		if _, err := sign(command...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", command, err, want)
		}
	}
}
