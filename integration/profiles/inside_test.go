package profiles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// run runs a container in the foreground under a profile; "" is the host's default.
func run(t *testing.T, profile string, mutate func(*specs.Spec)) harness.Result {
	t.Helper()
	_, agentsafe := harness.Peers(t)
	d := box.Bare(t, agentsafe)
	bundle := box.Bundle(t, mutate)
	args := []string{"run", "--bundle", bundle.Dir, bundle.ID}
	if profile != "" {
		args = append([]string{"--profile", profile}, args...)
	}
	return d.Do(t, args...)
}

// workspace is a folder of the host with a file of secrets.
func workspace(t *testing.T) string {
	t.Helper()
	dir := box.TempDir(t)
	for _, f := range []string{"a.txt", ".env", "sub/.env"} {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("text\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mount(s *specs.Spec, source, destination string) {
	s.Mounts = append(s.Mounts, specs.Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"rbind", "rw"}})
}

func wantOutput(t *testing.T, r harness.Result, want string) {
	t.Helper()
	if r.Stdout != want || r.Exit != 0 {
		t.Errorf("want exactly\n%s\ngot\n%v", want, r)
	}
}

func wantRefusal(t *testing.T, r harness.Result, want ...string) {
	t.Helper()
	for _, w := range want {
		if r.Exit == 0 || !strings.Contains(r.Stderr, w) {
			t.Errorf("want a refusal that says %q:\n%v", w, r)
		}
	}
}

// try prints what a command answers, in one word.
const try = `try() { if "$@" >/dev/null 2>&1; then echo "$1 $2: done"; else echo "$1 $2: refused"; fi; }
put() { echo x > "$1"; }
`

// An engine's option for a writable /sys is taken back by the policy; the mount itself has to follow.
func TestAttack_WritableSysfs(t *testing.T) {
	r := run(t, "", func(s *specs.Spec) {
		for i := range s.Mounts {
			if m := &s.Mounts[i]; m.Type == "sysfs" || m.Type == "cgroup" {
				m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == "ro" })
			}
		}
		harness.Sh(`awk '$5 == "/sys" || $5 ~ "^/sys/fs/cgroup" {split($6, o, ","); print o[1]}' /proc/self/mountinfo | sort -u`)(s)
	})
	wantOutput(t, r, "ro\n")
}

func TestLint(t *testing.T) {
	dir := workspace(t)
	r := run(t, "lint", func(s *specs.Spec) {
		mount(s, dir, "/job")
		s.Process.Cwd = "/job"
		s.Process.Env = append(s.Process.Env, "HOME=/root", "NPM_TOKEN=x", "KEPT=1")
		harness.Sh(try + `
			cat a.txt; cat .env sub/.env; echo "token:$NPM_TOKEN kept:$KEPT"
			try put /job/new; try put /etc/new; try put /tmp/new; try put /root/new; try rm /job/.env
			try wget http://127.0.0.1:1/`)(s)
	})
	wantOutput(t, r, "text\ntoken: kept:1\nput /job/new: refused\nput /etc/new: refused\nput /tmp/new: done\nput /root/new: done\n"+
		"rm /job/.env: refused\nwget http://127.0.0.1:1/: refused\n")
	if data, err := os.ReadFile(filepath.Join(dir, ".env")); err != nil || string(data) != "text\n" {
		t.Errorf("the host's file changed: %q, %v", data, err)
	}
}

// What is mounted below a workspace is as read-only as the workspace.
func TestAttack_WritableSubmount(t *testing.T) {
	dir, inner := workspace(t), workspace(t)
	r := run(t, "lint", func(s *specs.Spec) {
		mount(s, dir, "/job")
		mount(s, inner, "/job/sub")
		harness.Sh(try + "try put /job/sub/new; try put /job/new")(s)
	})
	wantOutput(t, r, "put /job/sub/new: refused\nput /job/new: refused\n")
}

// Every source is named, and nothing runs.
func TestAttack_CredentialMounts(t *testing.T) {
	dir := box.TempDir(t)
	for _, d := range []string{".aws", ".ssh"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	secrets := func(s *specs.Spec) {
		mount(s, filepath.Join(dir, ".aws"), "/creds")
		mount(s, filepath.Join(dir, ".ssh"), "/opt/x/.ssh")
		harness.Sh("echo ran")(s)
	}
	r := run(t, "lint", secrets)
	wantRefusal(t, r, "mount:/creds (AWS credentials)", "mount:/opt/x/.ssh (SSH keys)", "trust.secrets is false", "waive: [mount:/creds, mount:/opt/x/.ssh]")
	if strings.Contains(r.Stdout, "ran") {
		t.Error("it ran")
	}
	// The default profile only notes it.
	wantOutput(t, run(t, "", secrets), "ran\n")
}

// An exec is under the same rules on variables as the first process.
func TestAttack_SecretByExec(t *testing.T) {
	_, agentsafe := harness.Peers(t)
	d := box.Bare(t, agentsafe)
	bundle := box.Bundle(t, func(s *specs.Spec) { s.Process.Args = []string{"sleep", "1000"} })
	d.Must(t, "--profile", "lint", "run", "--detach", "--bundle", bundle.Dir, bundle.ID)
	r := d.Do(t, "exec", "--env", "NPM_TOKEN=x", "--env", "KEPT=1", bundle.ID, "sh", "-c", `echo "token:$NPM_TOKEN kept:$KEPT"`)
	wantOutput(t, r, "token: kept:1\n")
}

func TestRequests(t *testing.T) {
	const show = try + `try put /etc/new; try put /tmp/new; echo "caps $(grep CapEff /proc/self/status | cut -f2)"`
	annotated := func(key, value string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Annotations = map[string]string{key: value}
			s.Process.Env = append(s.Process.Env, "HOME=/root")
			harness.Sh(show)(s)
		}
	}
	t.Run("a tighter profile by annotation", func(t *testing.T) {
		wantOutput(t, run(t, "", annotated("agentsafe.dev/profile", "lint")), "put /etc/new: refused\nput /tmp/new: done\ncaps 00000000800405fb\n")
	})
	t.Run("a tighter profile by variable", func(t *testing.T) {
		r := run(t, "", func(s *specs.Spec) {
			s.Process.Env = append(s.Process.Env, "HOME=/root", "AGENTSAFE_PROFILE=lint", "AGENTSAFE_DROP_CAPABILITIES=all")
			harness.Sh(show)(s)
		})
		wantOutput(t, r, "put /etc/new: refused\nput /tmp/new: done\ncaps 0000000000000000\n")
	})
	t.Run("fewer capabilities", func(t *testing.T) {
		wantOutput(t, run(t, "", annotated("agentsafe.dev/drop-capabilities", "all")), "put /etc/new: done\nput /tmp/new: done\ncaps 0000000000000000\n")
	})
	t.Run("none by annotation", func(t *testing.T) {
		wantRefusal(t, run(t, "", annotated("agentsafe.dev/profile", "none")), "it grants more than the profile \"agent\"", "selectable = [\"none\"]")
	})
	t.Run("back from lint to agent", func(t *testing.T) {
		wantRefusal(t, run(t, "lint", annotated("agentsafe.dev/profile", "agent")), "it grants more than the profile \"lint\"", "filesystem.write")
	})
	t.Run("unknown", func(t *testing.T) {
		wantRefusal(t, run(t, "", annotated("agentsafe.dev/netz", "none")), "annotation agentsafe.dev/netz: not a key")
	})
}
