package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// in runs agentsafectl in the workspace.
func (b *bench) in(args ...string) (string, error) {
	b.t.Helper()
	all := append([]string{"--root", b.dir + "/state", "--run-dir", b.dir + "/runs", "--data-dir", b.dir + "/data"}, args...)
	cmd := exec.CommandContext(b.t.Context(), program, all...)
	cmd.Dir = b.workspace
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// What a run did passes under the profile that is made of it, and a planted extra does not.
func TestProfileGenerate(t *testing.T) {
	b := newBench(t)
	job := "#!/bin/sh\nset -e\ncat input >/dev/null\necho made >output\nT=$(mktemp)\nrm $T\n(sleep 0.1 & wait)\n./helper.sh\n"
	for name, text := range map[string]string{"job.sh": job, "helper.sh": "#!/bin/sh\necho helped\n", "input": "x\n"} {
		if err := os.WriteFile(filepath.Join(b.workspace, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(b.workspace, 0o777); err != nil {
		t.Fatal(err)
	}
	out, err := b.in("profile", "generate", "--name", "job", "-o", "job.yaml", "--", "./job.sh")
	if err != nil || !strings.Contains(out, "helped") {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(b.workspace, "job.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"extends: lint\n", "- $WORKSPACE  #", "- /tmp  #", "workspace: {mode: direct}"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if err := os.Remove(filepath.Join(b.workspace, "output")); err != nil {
		t.Fatal(err)
	}
	if out, err := b.in("run", "-q", "--profile", "./job.yaml", "--", "./job.sh"); err != nil || out != "helped\n" {
		t.Errorf("the same run under its profile: %v\n%s", err, out)
	}
	for name, extra := range map[string]string{
		"a new folder to read":  "ls /opt",
		"a new folder to write": "touch ~/x",
		"a program in /tmp":     "cp /bin/true /tmp/x && /tmp/x",
		"a host":                "getent hosts example.com || exit 1",
		"ptrace":                `python3 -c 'import ctypes,sys; sys.exit(0 if ctypes.CDLL(None).ptrace(0,0,0,0)==0 else 1)'`,
	} {
		if out, err := b.in("run", "-q", "--profile", "./job.yaml", "--", "sh", "-c", extra); err == nil {
			t.Errorf("%s passed: %s", name, out)
		}
	}
}

func TestProfileGenerate_MergesAndStatus(t *testing.T) {
	b := newBench(t)
	for _, command := range []string{"cat /etc/hostname", "ls /opt; exit 7", "kill -TERM $$", `python3 -c 'import ctypes; ctypes.CDLL(None).ptrace(16, 999999, 0, 0)'`} {
		out, err := b.in("profile", "generate", "--observations", "seen.json", "-o", "all.yaml", "--", "sh", "-c", command)
		want := map[string]int{"ls /opt; exit 7": 7, "kill -TERM $$": 143}[command]
		got := 0
		if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // exec's own
			got = exit.ExitCode()
		}
		if got != want {
			t.Errorf("%s: status %d, want %d\n%s", command, got, want, out)
		}
	}
	text, err := os.ReadFile(filepath.Join(b.workspace, "all.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#   sh -c cat /etc/hostname\n", "#   sh -c ls /opt; exit 7\n", "- /etc  #", "- /opt  #", "packs: [debug]"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if out, err := b.in("profile", "generate", "--", "no-such-command"); err == nil {
		t.Errorf("no such command: %s", out)
	}
}

// A run on an image is contained, and its paths are the image's.
func TestProfileGenerate_Image(t *testing.T) {
	b := newBench(t)
	image := busyboxImage(t)
	const job = "cat /etc/passwd >/dev/null && touch made && ls . && exit 3"
	out, err := b.in("profile", "generate", "--image", image, "--name", "job", "-o", "job.yaml", "--observations", "seen.json", "--", "sh", "-c", job)
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 3 || !strings.Contains(out, "made") { //nolint:errorlint // exec's own
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(b.workspace, "job.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"- /bin  # /bin/busybox", "- /etc  # /etc/passwd", "- $WORKSPACE  # /srv/app/made"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	out, err = b.in("run", "-q", "--image", image, "--profile", "./job.yaml", "--", "sh", "-c", job)
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 3 || !strings.Contains(out, "made") { //nolint:errorlint // exec's own
		t.Errorf("the same under its profile: %v\n%s", err, out)
	}
	for _, extra := range []string{"ls /var", "touch /etc/new", "cp /bin/busybox /tmp/sh && /tmp/sh true"} {
		if out, err := b.in("run", "-q", "--image", image, "--profile", "./job.yaml", "--", "sh", "-c", extra); err == nil {
			t.Errorf("%s passed: %s", extra, out)
		}
	}
	for want, args := range map[string][]string{
		"needs --image or --rootfs": {"--user", "1", "--", "true"},
		"no command":                {"--name", "x"},
		"there is none":             {"--recording", "no-such-recording"},
	} {
		if out, err := b.in(append([]string{"profile", "generate"}, args...)...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%q: %v, want %s\n%s", args, err, want, out)
		}
	}
}
