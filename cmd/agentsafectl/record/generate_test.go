package record

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/profiles/profilefile"
)

var update = flag.Bool("update", false, "rewrite golden files")

func sample() *Observations {
	o := NewObservations("/home/dev", "/home/dev/shop")
	o.Commands = []string{"make test\nall"}
	for _, f := range []string{
		"/usr/bin/make", "/usr/lib/x.so", "/etc/passwd", "/proc/self/status", "/dev/null", "/", "/home/dev/shop/a.c", "/home/dev/.gitconfig",
		"/opt/tool/lib/a", "/opt/tool/lib/b", "/srv/data/odd name/x",
	} {
		o.Reads[f]++
	}
	for _, f := range []string{"/home/dev/shop/a.o", "/tmp/cc1", "/home/dev/.cache/go-build/00/a", "/home/dev/.npm/x"} {
		o.Writes[f]++
	}
	o.Executes["/usr/bin/make"], o.Executes["/home/dev/shop/tool.sh"] = 3, 1
	o.Calls["ptrace"], o.Calls["clone with namespaces"], o.Calls["io_uring_setup"] = 1, 1, 2
	o.Processes, o.MaxRSSBytes = 40, 64<<20
	return o
}

func TestYAML_Golden(t *testing.T) {
	online := sample()
	online.Names["files.example.org"], online.Addresses["192.0.2.1:443"], online.Addresses["192.0.2.1:8080"] = 2, 1, 1
	for name, o := range map[string]*Observations{"offline": sample(), "online": online} {
		text := YAML(o, "shop")
		p, err := profilefile.Parse(strings.NewReader(text), name)
		if err != nil && !strings.Contains(err.Error(), "not enforced by this version") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
		if err == nil && (p.Name != "shop" || len(p.Filesystem.Write) == 0) {
			t.Errorf("%s: %+v", name, p)
		}
		file := "testdata/" + name + ".yaml"
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || string(want) != text {
			t.Errorf("%s differs (%v): run with -update and read the difference\n%s", file, err, text)
		}
	}
}

// Names that a hostile run chose must not become keys of the profile.
func TestAttack_YAMLFromFileNames(t *testing.T) {
	o := NewObservations("/home/dev", "/job")
	o.Commands = []string{"x\nextends: agent"}
	for _, f := range []string{"/srv/a\nextends: agent\n#/x/y", "/srv/'q'/x", "/srv/a: b/x", "/srv/# c/x", "/srv/*x/y/z", "/srv/${HOME}/y/z"} {
		o.Reads[f]++
		o.Writes[f]++
	}
	o.Calls["number 7\nextends: agent"]++
	o.Names["x.org\"\nextends: agent"]++
	text := YAML(o, "x")
	p, err := profilefile.Parse(strings.NewReader(text), "f")
	if err == nil && p.Extends != "test" {
		t.Errorf("%+v\n%s", p, text)
	}
	if n := strings.Count(text, "\nextends: "); n != 1 {
		t.Errorf("%d lines begin with extends:\n%s", n, text)
	}
}
