package limits

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestEvidence_Refused: a container that the profile refuses leaves a signed log that says what was asked for, by whom,
// and which rule refused it, although no container of that name has ever been there.
func TestEvidence_Refused(t *testing.T) {
	keygen(t)
	reloaded.Do(func() { reloadDocker(t) })
	ours := harness.Peer{Name: "ev", Path: wrapper("ev")}
	for name, run := range map[string]func(t *testing.T) (string, harness.Result){
		"docker": func(t *testing.T) (string, harness.Result) {
			id := filepath.Join(box.TempDir(t), "id")
			r := docker.Do(t, "run", "--rm", "--cidfile", id, "--privileged", "--network", "none", "--runtime", "ev", image, "echo", "--password=hunter4")
			return read(t, id), r
		},
		"podman": func(t *testing.T) (string, harness.Result) {
			id := filepath.Join(box.TempDir(t), "id")
			r := podman.Do(t, ours, "run", "--rm", "--cidfile", id, "--cap-add", "SYS_ADMIN", "--network", "none", "--cgroup-parent", box.CgroupParent(),
				"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", image, "echo", "--password=hunter4")
			return read(t, id), r
		},
		"containerd": func(t *testing.T) (string, harness.Result) {
			id := box.ID()
			return id, containerd.Do(t, "run", "--rm", "--privileged", "--runtime", shimPath("ev"), "docker.io/library/"+image, id, "echo", "--password=hunter4")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, r := run(t)
			if r.Exit == 0 || !strings.Contains(r.Stdout+r.Stderr, "refused") {
				t.Fatalf("want a refusal:\n%v", r)
			}
			if got := types(t, id); got != "refused close" {
				t.Errorf("records %s, want refused and close", got)
			}
			text := audit(t, "export", "--log", id).Stdout
			for _, want := range []string{`"engine":"` + name + `"`, `"profile":"ev"`, `"what":"`, `"rule":"profile \"ev\"`, `"allow":"`, `"echo"`, `"specHash":"`} {
				if !strings.Contains(text, want) {
					t.Errorf("%s is not in\n%s", want, text)
				}
			}
			if name == "podman" && !strings.Contains(text, `"caller":"conmon"`) || strings.Contains(text, "hunter") {
				t.Errorf("want who asked, and no secret:\n%s", text)
			}
			wantSchema(t, id)
			if v := audit(t, "verify", id); v.Exit != 0 || !strings.Contains(v.Stdout, "signature  good") {
				t.Errorf("verify:\n%v", v)
			}
		})
	}
	// Without evidence in the profile nothing is kept.
	d := box.Bare(t, harness.Peer{Name: "execs", Path: wrapper("execs")})
	bundle := box.Bundle(t, func(s *specs.Spec) { s.Linux.Namespaces = nil })
	if r := d.Do(t, "create", "--bundle", bundle.Dir, bundle.ID); r.Exit == 0 {
		t.Errorf("the host's namespaces are granted:\n%v", r)
	}
	if _, err := os.Stat(filepath.Join(evidenceDir, bundle.ID)); err == nil {
		t.Error("a profile without evidence leaves some")
	}
}

// inputs makes artefacts, and says what sha256sum makes of them.
func inputs(t *testing.T) (dir, fileSum, dirSum string) {
	t.Helper()
	dir = box.TempDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "tree", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"data.csv": "a,b\n1,2\n", "tree/z": "z", "tree/sub/a": "a", "tree/sub.b": "", "tree/new\nline\\": "odd"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "tree", "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"tree/link": "/etc/passwd", "up": "../../../../etc/nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	sum := func(script string) string {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))[0]
	}
	return dir, sum("sha256sum data.csv"), sum("(cd tree && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | sha256sum")
}

const inputsAnnotation = "agentsafe.dev/inputs"

// TestEvidence_Inputs: the digests of what a container was given are in its log and its statement, if somebody asks.
func TestEvidence_Inputs(t *testing.T) {
	keygen(t)
	dir, fileSum, dirSum := inputs(t)
	ask := func(paths string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Process.Args = []string{"true"}
			s.Annotations = map[string]string{inputsAnnotation: paths}
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/job", Type: "bind", Source: dir, Options: []string{"bind", "ro"}})
		}
	}
	bare := box.Bare(t, harness.Peer{Name: "ev", Path: wrapper("ev")})
	bundle := box.Bundle(t, ask("/job/data.csv, /job/tree"))
	bare.Must(t, "run", "--bundle", bundle.Dir, bundle.ID)
	shim := box.ID()
	if r := containerd.Do(t, "run", "--rm", "--runtime", shimPath("ev"), "--annotation", inputsAnnotation+"=/job/data.csv,/job/tree",
		"--mount", "type=bind,src="+dir+",dst=/job,options=rbind:ro", "docker.io/library/"+image, shim, "true"); r.Exit != 0 {
		t.Fatal(r)
	}
	for _, id := range []string{bundle.ID, shim} {
		var envelope struct{ Payload []byte }
		if err := json.Unmarshal([]byte(audit(t, "export", id).Stdout), &envelope); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{audit(t, "show", "--json", "--type", "start", id).Stdout, string(envelope.Payload)} {
			for _, want := range []string{
				`{"path":"/job/data.csv","sha256":"` + fileSum + `","files":1,"bytes":8}`,
				`{"path":"/job/tree","directory":true,"sha256":"` + dirSum + `","files":4,"bytes":5}`,
			} {
				if !strings.Contains(text, want) {
					t.Errorf("%s is not in\n%s", want, text)
				}
			}
		}
	}
	for paths, want := range map[string]string{
		"/job/missing": "no such file", "job/data.csv": "absolute", "/job/up": "no such file", "/job/tree/fifo": "neither a file",
		"/dev/null": "neither a file", "/job/data.csv,": "absolute",
	} {
		bundle := box.Bundle(t, ask(paths))
		if r := bare.Do(t, "run", "--bundle", bundle.Dir, bundle.ID); r.Exit == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%q: want a failure with %q:\n%v", paths, want, r)
		}
	}
	without := box.Bare(t, harness.Peer{Name: "execs", Path: wrapper("execs")})
	bundle = box.Bundle(t, ask("/job/data.csv"))
	if r := without.Do(t, "run", "--bundle", bundle.Dir, bundle.ID); r.Exit == 0 || !strings.Contains(r.Stderr, "evidence") {
		t.Errorf("digests that nobody keeps:\n%v", r)
	}
}
