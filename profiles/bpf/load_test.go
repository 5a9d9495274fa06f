package bpf

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// The test binary plays the compiler. It can't be told by environment, which a compiler does not get, so its name says
// what to do.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); {
	case strings.HasPrefix(name, "compiler-"):
		os.Exit(playCompiler(strings.TrimPrefix(name, "compiler-")))
	default:
		os.Exit(m.Run())
	}
}

// program is what the compiler of these tests makes: the length of the description decides.
func program(n uint32) []unix.SockFilter {
	return []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: n}, {Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
}

func playCompiler(how string) int {
	in, err := io.ReadAll(os.Stdin)
	if err != nil || len(os.Environ()) != 0 {
		fmt.Fprintln(os.Stderr, "input:", err, "environment:", os.Environ())
		return 1
	}
	var f profiles.SeccompFilter
	if err := json.Unmarshal(in, &f); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Each run leaves a trace beside the program.
	log, err := os.OpenFile(filepath.Dir(os.Args[0])+"/runs", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintln(log, f.Name)
		log.Close()
	}
	switch how {
	case "good":
		os.Stdout.Write(encode(program(uint32(len(f.Rules))))) //nolint:errcheck // the test notices
	case "fails":
		fmt.Fprintln(os.Stderr, "no such call")
		return 3
	case "half":
		os.Stdout.Write(encode(program(1))[:11]) //nolint:errcheck // likewise
	case "silent":
	case "endless":
		time.Sleep(time.Hour)
	}
	return 0
}

// compiler makes a compiler of a kind, and a function that counts its runs.
func compiler(t *testing.T, how string) (path string, runs func() int) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "compiler-"+how)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path, func() int {
		data, _ := os.ReadFile(filepath.Join(dir, "runs"))
		return strings.Count(string(data), "\n")
	}
}

func filter(rules int) profiles.SeccompFilter {
	return profiles.SeccompFilter{Name: "test", Arch: "amd64", Rules: make([]profiles.SeccompRule, rules)}
}

func TestLoad_FillsAndUsesTheCache(t *testing.T) {
	helper, runs := compiler(t, "good")
	dir := filepath.Join(t.TempDir(), "a", "cache")
	for i := range 3 {
		got, err := Load(t.Context(), filter(5), dir, helper)
		if err != nil || !reflect.DeepEqual(got, program(5)) {
			t.Fatalf("load %d: %v %v", i, got, err)
		}
	}
	if runs() != 1 {
		t.Errorf("%d runs of the compiler, want 1", runs())
	}
	if got, err := Load(t.Context(), filter(6), dir, helper); err != nil || !reflect.DeepEqual(got, program(6)) || runs() != 2 {
		t.Errorf("another filter: %v %v, %d runs", got, err, runs())
	}
	st, err := os.Stat(dir)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("cache: %v %v", st.Mode(), err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("%d files in the cache: %v", len(files), err)
	}
	if _, err := Load(t.Context(), filter(5), "", helper); err != nil || runs() != 3 {
		t.Errorf("without a cache: %v, %d runs", err, runs())
	}
}

func TestLoadAll(t *testing.T) {
	helper, runs := compiler(t, "good")
	dir := filepath.Join(t.TempDir(), "cache")
	if _, err := Load(t.Context(), filter(2), dir, helper); err != nil {
		t.Fatal(err)
	}
	list := []profiles.SeccompFilter{filter(3), filter(2), filter(1)}
	want := [][]unix.SockFilter{program(3), program(2), program(1)}
	for range 2 {
		if got, err := LoadAll(t.Context(), list, dir, helper); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, %v", got, err)
		}
		if n := runs(); n != 3 {
			t.Errorf("%d runs of the compiler, want one for each filter", n)
		}
	}
	bad, _ := compiler(t, "fails")
	if got, err := LoadAll(t.Context(), append(list, filter(4)), dir, bad); err == nil || got != nil {
		t.Errorf("a filter that does not compile: %v, %v", got, err)
	}
	if got, err := LoadAll(t.Context(), nil, "", helper); err != nil || len(got) != 0 {
		t.Errorf("no filter: %v, %v", got, err)
	}
}

// Whatever is wrong with a file, the next load makes it anew and never returns half of it.
func TestLoad_DamagedFile(t *testing.T) {
	f := filter(4)
	good := func(body []byte) []byte {
		sum := sha256.Sum256(body)
		return append(append([]byte(magic), sum[:]...), body...)
	}
	body := encode(program(4))
	flipped := good(body)
	flipped[len(flipped)-1] ^= 1
	for name, content := range map[string][]byte{
		"empty":          {},
		"zeros":          make([]byte, headerBytes+16),
		"cut off":        good(body)[:headerBytes+8],
		"changed":        flipped,
		"other version":  append([]byte("asbpf\x00\x00\x02"), good(body)[len(magic):]...),
		"half a command": good(body[:11]),
		"no answer":      good(body[:8]),
		"nothing in it":  good(nil),
		"huge":           good(make([]byte, 1<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			helper, runs := compiler(t, "good")
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, f.Key()), content, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if got, err := Load(t.Context(), f, dir, helper); err != nil || !reflect.DeepEqual(got, program(4)) {
					t.Fatalf("%v %v", got, err)
				}
			}
			if runs() != 1 {
				t.Errorf("%d runs, want 1: the file is not replaced", runs())
			}
		})
	}
}

// Who can write a filter decides what it allows.
func TestAttack_CacheOfAnother(t *testing.T) {
	for name, spoil := range map[string]func(dir, file string) error{
		"directory for the group": func(dir, _ string) error { return os.Chmod(dir, 0o770) },
		"directory for all":       func(dir, _ string) error { return os.Chmod(dir, 0o702) },
		"file for the group":      func(_, file string) error { return os.Chmod(file, 0o620) },
		"file for all":            func(_, file string) error { return os.Chmod(file, 0o602) },
		"directory of another":    func(dir, _ string) error { return os.Chown(dir, 12345, 0) },
		"file of another":         func(_, file string) error { return os.Chown(file, 12345, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			helper, runs := compiler(t, "good")
			dir, file := filled(t, helper)
			err := spoil(dir, file)
			if errors.Is(err, unix.EPERM) {
				t.Skipf("probe chown: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := Load(t.Context(), filter(2), dir, helper); !errors.Is(err, ErrUntrusted) || got != nil {
				t.Errorf("got %v, %v", got, err)
			}
			if runs() != 1 {
				t.Error("compiled all the same")
			}
		})
	}
}

// filled makes a cache with one filter in it.
func filled(t *testing.T, helper string) (dir, file string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "cache")
	f := filter(2)
	if _, err := Load(t.Context(), f, dir, helper); err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, f.Key())
}

// What is no regular file is replaced, and not followed or waited for.
func TestAttack_CacheWithPlantedFile(t *testing.T) {
	helper, _ := compiler(t, "good")
	for name, plant := range map[string]func(file string) error{
		"symlink": func(file string) error { return os.Symlink("/dev/zero", file) },
		"fifo":    func(file string) error { return unix.Mkfifo(file, 0o600) },
	} {
		dir, file := filled(t, helper)
		if err := errors.Join(os.Remove(file), plant(file)); err != nil {
			t.Fatal(err)
		}
		if got, err := Load(t.Context(), filter(2), dir, helper); err != nil || !reflect.DeepEqual(got, program(2)) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
	dir, _ := filled(t, helper)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(t.Context(), filter(2), link, helper); err == nil {
		t.Error("a symlink in the directory's place is followed")
	}
}

func TestLoad_CompilerFails(t *testing.T) {
	for how, want := range map[string]string{"fails": "no such call", "half": "11 bytes", "silent": "0 bytes"} {
		t.Run(how, func(t *testing.T) {
			helper, _ := compiler(t, how)
			dir := filepath.Join(t.TempDir(), "cache")
			_, err := Load(t.Context(), filter(1), dir, helper)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "test") {
				t.Errorf("got %v, want %q", err, want)
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
				t.Errorf("left %v in the cache: %v", files, err)
			}
		})
	}
	if _, err := Load(t.Context(), filter(1), t.TempDir(), "/no/such/program"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing compiler: %v", err)
	}
	helper, _ := compiler(t, "endless")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Load(ctx, filter(1), "", helper); err == nil {
		t.Error("an endless compiler")
	}
}

// A cache that can't be filled does not keep containers from starting.
func TestLoad_FullCache(t *testing.T) {
	helper, runs := compiler(t, "good")
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, "mode=0700"); err != nil {
		t.Skipf("probe mount: %v", err)
	}
	defer unix.Unmount(dir, 0)
	for i := range 2 {
		if got, err := Load(t.Context(), filter(3), dir, helper); err != nil || !reflect.DeepEqual(got, program(3)) || runs() != i+1 {
			t.Errorf("%v %v, %d runs", got, err, runs())
		}
	}
}

func TestLoad_Parallel(t *testing.T) {
	helper, _ := compiler(t, "good")
	dir := filepath.Join(t.TempDir(), "cache")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if got, err := Load(t.Context(), filter(7), dir, helper); err != nil || !reflect.DeepEqual(got, program(7)) {
				t.Errorf("%v %v", got, err)
			}
		})
	}
	all.Wait()
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v in the cache: %v", files, err)
	}
}

// What a crash left is removed, but nothing that may still be written.
func TestLoad_SweepsWhatCrashesLeft(t *testing.T) {
	helper, _ := compiler(t, "good")
	dir := filepath.Join(t.TempDir(), "cache")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stale, fresh := filepath.Join(dir, tempPrefix+"a"), filepath.Join(dir, tempPrefix+"b")
	for _, f := range []string{stale, fresh} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * staleAge)
	if err := os.Chtimes(stale, old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(t.Context(), filter(1), dir, helper); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stale file: %v", err)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("fresh file: %v", err)
	}
}

func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir()
	c, err := openCache(dir)
	if err != nil {
		b.Fatal(err)
	}
	p, err := profiles.Builtin(profiles.NameAgent)
	if err != nil {
		b.Fatal(err)
	}
	f := filter(1)
	f.Name = p.Name
	body := make([]byte, 0, 500*instructionBytes)
	for range 250 {
		body = append(body, encode(program(1))...)
	}
	c.write(f.Key(), body)
	c.close()
	for b.Loop() {
		if _, err := Load(b.Context(), f, dir, "/no/such/program"); err != nil {
			b.Fatal(err)
		}
	}
}
