package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const readmePath = "../../README.md"

// readmeCommands returns the lines of README's sh blocks.
func readmeCommands(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(readmePath)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, part := range strings.Split(string(data), "```") {
		if block, ok := strings.CutPrefix(part, "sh\n"); ok && i%2 == 1 {
			out = append(out, strings.Split(strings.TrimSpace(block), "\n")...)
		}
	}
	return out
}

// TestREADME runs what the README tells people to run. The commands of engines
// are run by the tests of integration/; here they must be known ones.
func TestREADME(t *testing.T) {
	b := newBench(t)
	bin := filepath.Dir(b.wrapper())
	image, err := os.ReadFile(busyboxImage(t))
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string]string{
		filepath.Join(b.workspace, "Makefile"):  "test:\n\t@echo tested\n",
		filepath.Join(b.workspace, "image.tar"): string(image),
	} {
		if err := os.WriteFile(path, []byte(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	known := []string{
		"docker run --rm --runtime=agentsafe IMAGE CMD",
		"podman --runtime /usr/local/bin/agentsafe run --rm IMAGE CMD",
		"ctr run --rm --runc-binary /usr/local/bin/agentsafe IMAGE ID CMD",
		"podman --runtime /usr/local/bin/agentsafe run --network none --annotation agentsafe.dev/profile=build IMAGE pip install PACKAGE",
	}
	ran := 0
	for _, line := range readmeCommands(t) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		switch {
		case strings.HasPrefix(line, "agentsafectl "):
			cmd.Dir = b.workspace
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		case strings.HasPrefix(line, "make "):
			cmd = exec.CommandContext(t.Context(), "make", "-n", "-C", "../..", strings.TrimPrefix(line, "make "))
		case slices.Contains(known, line):
			continue
		default:
			t.Errorf("nobody runs %q", line)
			continue
		}
		out, err := cmd.CombinedOutput()
		refused := strings.HasSuffix(line, "doctor") && strings.Contains(string(out), "can NOT be enforced")
		if err != nil && !refused {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
		ran++
	}
	if ran < 6 {
		t.Errorf("only %d commands in README.md", ran)
	}
}

// wrapper writes a program `agentsafectl` that works in the test's directories.
func (b *bench) wrapper() string {
	b.t.Helper()
	text := "#!/bin/sh\nexec " + program + " --root " + b.dir + "/state --run-dir " + b.dir + "/runs --data-dir " + b.dir + "/data \"$@\"\n"
	path := filepath.Join(b.dir, "bin", "agentsafectl")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// TestDemo: the demo passes, and it fails where nothing is refused.
func TestDemo(t *testing.T) {
	b := newBench(t)
	demo := func(ctl string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "../../integration/demo.sh")
		cmd.Env = append(os.Environ(), "AGENTSAFECTL="+ctl, "AGENTSAFECTL_RUNS="+filepath.Join(b.dir, "runs"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	wrapper := b.wrapper()
	if out, err := demo(wrapper); err != nil || !strings.HasSuffix(out, "demo: passed\n") {
		t.Errorf("%v\n%s", err, out)
	}
	// The same command line without the profile.
	weak := filepath.Join(b.dir, "bin", "weak")
	text := "#!/bin/sh\ncommand=$1\nshift\nexec " + wrapper + " \"$command\" --profile none \"$@\"\n"
	if err := os.WriteFile(weak, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := demo(weak); err == nil || !strings.Contains(out, "something was not refused") {
		t.Errorf("without the profile: %v\n%s", err, out)
	}
}
