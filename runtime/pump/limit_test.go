package pump

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// limited runs a limit over what write writes, and returns what arrives and what write got.
func limited(t *testing.T, l *Limit, write func(w *os.File) error) (string, error) {
	t.Helper()
	fromR, fromW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	toR, toW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	src, err := Source(fromR)
	if err != nil {
		t.Fatal(err)
	}
	fromR.Close()
	dst, err := Destination(toW)
	if err != nil {
		t.Fatal(err)
	}
	toW.Close()
	done, wrote, got := make(chan error, 1), make(chan error, 1), make(chan string, 1)
	go func() { done <- l.Run(dst, src) }()
	go func() {
		err := write(fromW)
		fromW.Close()
		wrote <- err
	}()
	go func() {
		data, err := io.ReadAll(toR)
		if err != nil {
			data = []byte(err.Error())
		}
		got <- string(data)
	}()
	text, err := <-got, <-wrote
	toR.Close()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	return text, err
}

func TestLimit(t *testing.T) {
	many := bytes.Repeat([]byte("x"), 1<<20)
	for name, c := range map[string]struct {
		max     int64
		data    []byte
		discard bool
		want    string
		cut     bool
		broken  bool
	}{
		"below":            {10, []byte("hello"), false, "hello", false, false},
		"exactly":          {5, []byte("hello"), false, "hello", false, false},
		"one more":         {4, []byte("hello"), true, "hell\n[end]\n", true, false},
		"much, discarded":  {3, many, true, "xxx\n[end]\n", true, false},
		"much, and EPIPE":  {3, many, false, "xxx\n[end]\n", true, true},
		"nothing":          {3, nil, false, "", false, false},
		"more than a pipe": {1 << 19, many, true, string(many[:1<<19]) + "\n[end]\n", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			cuts := 0
			text, err := limited(t, &Limit{MaxBytes: c.max, Line: "[end]", Discard: c.discard, Cut: func() { cuts++ }},
				func(w *os.File) error { _, err := w.Write(c.data); return err })
			if text != c.want || (cuts == 1) != c.cut || errors.Is(err, unix.EPIPE) != c.broken {
				t.Errorf("got %d bytes %.20q, %d cuts, %v; want %d bytes", len(text), text, cuts, err, len(c.want))
			}
		})
	}
}

// TestLimit_ReaderGone: a writer whose reader has gone learns of it, below the limit.
func TestLimit_ReaderGone(t *testing.T) {
	fromR, fromW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dst, err := deadEnd()
	if err != nil {
		t.Fatal(err)
	}
	src, err := Source(fromR)
	if err != nil {
		t.Fatal(err)
	}
	fromR.Close()
	done := make(chan error, 1)
	go func() { done <- (&Limit{MaxBytes: 1 << 40}).Run(dst, src) }()
	for err == nil {
		_, err = fromW.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.EPIPE) {
		t.Errorf("write: %v", err)
	}
	fromW.Close()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

func TestLimit_ToFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	src, err := Source(r)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	dst, err := Destination(f)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		io.WriteString(w, strings.Repeat("a", 100)) //nolint:errcheck // what arrives is looked at
		w.Close()
	}()
	if err := (&Limit{MaxBytes: 7, Line: "[end]", Discard: true}).Run(dst, src); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "aaaaaaa\n[end]\n" {
		t.Errorf("%q, %v", data, err)
	}
}

// BenchmarkLimit moves output within a limit: at least 1 GB/s is wanted.
func BenchmarkLimit(b *testing.B) {
	fromR, fromW, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	src, err := Source(fromR)
	if err != nil {
		b.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	const chunk = 1 << 16
	fromW.Fd() // blocking, as a task's is
	b.SetBytes(chunk)
	done := make(chan error, 1)
	go func() { done <- (&Limit{MaxBytes: 1 << 60}).Run(null, src) }()
	data := make([]byte, chunk)
	for b.Loop() {
		if _, err := fromW.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	fromW.Close()
	if err := <-done; err != nil {
		b.Error(err)
	}
}
