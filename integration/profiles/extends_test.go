package profiles

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestExtendsCycle tries every way to a profile that descends from itself: within a file, within the files of one
// installation, and by way of one that is installed.
func TestExtendsCycle(t *testing.T) {
	ctl, dir := program(t, "agentsafectl"), box.TempDir(t)
	t.Cleanup(func() {
		if err := os.RemoveAll("/etc/agentsafe"); err != nil {
			t.Error(err)
		}
	})
	write := func(file, name, parent string) string {
		path := filepath.Join(dir, file)
		text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: " + name + "}\nextends: " + parent + "\n"
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	do := func(args ...string) harness.Result {
		return box.Run(t, harness.Cmd{Args: append([]string{ctl, "profile"}, args...)})
	}
	self := write("self.yaml", "loop", "loop")
	wantRefusal(t, do("install", self), self+":4: extends: extends itself")
	one, two := write("one.yaml", "one", "two"), write("two.yaml", "two", "one")
	wantRefusal(t, do("install", one, two), "two.yaml:4: extends: ", "extends itself: "+one+" extends "+two+" extends "+one)

	first, second, third := write("first.yaml", "first", "lint"), write("second.yaml", "second", "first"), write("third.yaml", "third", "second")
	if r := do("install", third, second, first); r.Exit != 0 {
		t.Fatalf("a chain of three, installed in any order:\n%v", r)
	}
	again := write("again.yaml", "first", "third")
	for _, r := range []harness.Result{
		do("install", again), do("show", again), do("check", again),
		box.Run(t, harness.Cmd{Args: []string{ctl, "run", "--profile", again, "--", "true"}}),
	} {
		wantRefusal(t, r, again+":4: extends: \"first\" extends itself: "+again+" extends third extends second extends first, as installed")
	}
	// The same name anew, from a parent that does not descend from it, is no cycle.
	if r := do("install", write("anew.yaml", "first", "offline"), write("other.yaml", "second", "first")); r.Exit != 0 {
		t.Errorf("installed anew:\n%v", r)
	}
}

// An image that links a granted path to somewhere else widens nothing: the link grants neither its target nor itself.
func TestAttack_GrantedSymlink(t *testing.T) {
	ctl, dir := program(t, "agentsafectl"), box.TempDir(t)
	t.Cleanup(func() {
		if err := os.RemoveAll("/etc/agentsafe"); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(dir, "links.yaml")
	text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: links}\nextends: lint\n" +
		"filesystem: {read: [/bin, /proc, /srv/in], execute: [/bin], write: [/srv/out, /srv/in/plain]}\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, ctl, "profile", "install", file)
	_, agentsafe := harness.Peers(t)
	bundle := box.Bundle(t, harness.Sh(try+`
		try cat /var/data/f; try cat /srv/in/f; try cat /srv/in/link/f
		try put /var/data/f; try put /srv/out/f; try put /srv/in/plain/f`))
	for _, d := range []string{"var/data", "srv/in/plain"} {
		if err := os.MkdirAll(filepath.Join(bundle.Rootfs(), d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"var/data/f", "srv/in/f"} {
		if err := os.WriteFile(filepath.Join(bundle.Rootfs(), f), []byte("x"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"srv/out": "/var/data", "srv/in/link": "/var/data"} {
		if err := os.Symlink(target, filepath.Join(bundle.Rootfs(), link)); err != nil {
			t.Fatal(err)
		}
	}
	wantOutput(t, box.Bare(t, agentsafe).Do(t, "--profile", "links", "run", "--bundle", bundle.Dir, bundle.ID),
		"cat /var/data/f: refused\ncat /srv/in/f: done\ncat /srv/in/link/f: refused\n"+
			"put /var/data/f: refused\nput /srv/out/f: refused\nput /srv/in/plain/f: done\n")
}
