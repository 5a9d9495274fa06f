package hardening

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

const narrow = `apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: narrow, description: paths for a test}
extends: agent
filesystem:
  read:    [/bin, /etc, /proc, /dev, /data, /home/app]
  execute: [/bin]
  write:   [/tmp, /dev, /home/app]
`

// TestLandlock restricts paths by a profile and looks from the first process and from exec: all files belong to the
// caller, so that nothing but Landlock refuses.
func TestLandlock(t *testing.T) {
	abi := landlockABI(t)
	if abi < 1 {
		t.Skipf("probe landlock: ABI %d", abi)
	}
	_, p := harness.Peers(t)
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	install := func(text string) {
		file := filepath.Join(box.TempDir(t), "narrow.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		box.MustRun(t, filepath.Join(root, "bin/agentsafectl"), "profile", "install", file)
	}
	install(narrow)

	const script = "probe access /etc/passwd /data/f /tmp/f /home/app/f /var/secret /var/program /bin/probe; ls / >/dev/null 2>&1; echo list=$?"
	prepare := func(s *specs.Spec) { s.Process.Args = []string{"sh", "-c", script} }
	bare := func(profile string) harness.Result {
		d := box.Bare(t, p)
		bundle := box.Bundle(t, prepare)
		for name, mode := range map[string]os.FileMode{"data/f": 0o666, "tmp/f": 0o666, "home/app/f": 0o666, "var/secret": 0o666} {
			path := filepath.Join(bundle.Rootfs(), name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("x"), mode); err != nil {
				t.Fatal(err)
			}
		}
		program, err := os.ReadFile(filepath.Join(busybox.Rootfs, "bin/probe"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bundle.Rootfs(), "var/program"), program, 0o755); err != nil {
			t.Fatal(err)
		}
		return box.Run(t, harness.Cmd{Args: []string{p.Path, "--root", d.Root, "--profile", profile, "run", "--bundle", bundle.Dir, bundle.ID}})
	}
	if abi < abiTruncate {
		// Nothing is silently weaker: the kernel is refused until the profile says that less will do.
		if r := bare("narrow"); r.Exit == 0 || !strings.Contains(r.Stderr, "truncate(2)") || !strings.Contains(r.Stderr, "best-effort") {
			t.Errorf("want a refusal for want of truncate: %v", r)
		}
		install(narrow + "enforcement: {landlock: best-effort}\n")
	}
	want := map[string]string{
		"agent":  "/etc/passwd read=ok write=ok execute=EACCES\n/data/f read=ok write=ok execute=EACCES\n/tmp/f read=ok write=ok execute=EACCES\n/home/app/f read=ok write=ok execute=EACCES\n/var/secret read=ok write=ok execute=EACCES\n/var/program read=ok write=ok execute=ok\n/bin/probe read=ok write=busy execute=ok\nlist=0\n",
		"narrow": "/etc/passwd read=ok write=EACCES execute=EACCES\n/data/f read=ok write=EACCES execute=EACCES\n/tmp/f read=ok write=ok execute=EACCES\n/home/app/f read=ok write=ok execute=EACCES\n/var/secret read=EACCES write=EACCES execute=EACCES\n/var/program read=EACCES write=EACCES execute=EACCES\n/bin/probe read=ok write=busy execute=ok\nlist=1\n",
	}
	for profile, text := range want {
		t.Run(profile, func(t *testing.T) {
			r := bare(profile)
			// A running program can not be opened for writing, whoever asks.
			if got := strings.ReplaceAll(r.Stdout, "ETXTBSY", "busy"); got != text {
				t.Errorf("got\n%s\nwant\n%s\n%v", got, text, r)
			}
		})
	}
	t.Run("narrow, exec", func(t *testing.T) {
		d := box.Bare(t, p)
		bundle := box.Bundle(t, func(s *specs.Spec) { s.Process.Args = []string{"sleep", "1000"} })
		if err := os.WriteFile(filepath.Join(bundle.Rootfs(), "var/secret"), []byte("x"), 0o666); err != nil {
			t.Fatal(err)
		}
		box.MustRun(t, p.Path, "--root", d.Root, "--profile", "narrow", "run", "--detach", "--bundle", bundle.Dir, bundle.ID)
		r := d.Do(t, "exec", bundle.ID, "sh", "-c", "probe access /var/secret /etc/passwd")
		if want := "/var/secret read=EACCES write=EACCES execute=EACCES\n/etc/passwd read=ok write=EACCES execute=EACCES\n"; r.Stdout != want {
			t.Errorf("got %q, want %q\n%v", r.Stdout, want, r)
		}
	})
}

// abiTruncate is the version of Landlock that judges truncate(2), Linux 6.2.
const abiTruncate = 3

func landlockABI(t *testing.T) int {
	t.Helper()
	r := box.Run(t, harness.Cmd{Args: []string{probe(), "landlock"}})
	var abi int
	if _, err := fmt.Sscan(r.Stdout, &abi); err != nil {
		t.Fatal(r)
	}
	return abi
}
