package record

import (
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/profiles"
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

// Every call that the filter stops for its arguments is looked at, and nothing else is expected to stop.
func TestCalls(t *testing.T) {
	watched := watchedCalls()
	_, refused := profiles.ListedCalls()
	names := profiles.RecordedCalls()
	if len(names) != len(watched)+len(refused) {
		t.Errorf("%d calls stop, %d are looked at and %d refused", len(names), len(watched), len(refused))
	}
	for i, name := range names {
		if _, ok := watched[name]; ok != (i < len(watched)) {
			t.Errorf("%s, number %d: looked at: %v", name, i, ok)
		}
	}
}

// A run that opens millions of files fills neither the recorder's memory nor a recording.
func TestAttack_EndlessRecording(t *testing.T) {
	r := newRecorder(NewObservations("", ""))
	long := strings.Repeat("x", 4000)
	for i := range 20_000 {
		r.count(r.seen.Reads, long+strconv.Itoa(i))
	}
	if r.kept > maxKeptBytes || r.seen.Dropped == 0 {
		t.Errorf("%d bytes are kept, %d files dropped", r.kept, r.seen.Dropped)
	}
	all := NewObservations("", "")
	for run := range 6 {
		o := NewObservations("/root", "/job")
		if run == 5 {
			o.Home = "/home/app"
		}
		o.SetCommand([]string{long, long, strconv.Itoa(run)})
		for k := range r.seen.Reads {
			o.Reads[k+"/"+strconv.Itoa(run)]++
		}
		all.Merge(o)
	}
	if n := all.bytes(); n > maxMergedBytes || all.Dropped == 0 || all.Home != "" || all.Workspace != "/job" || len(all.Commands) != 1 {
		t.Errorf("%d bytes after merging, %d dropped, home %q, workspace %q, %d commands", n, all.Dropped, all.Home, all.Workspace, len(all.Commands))
	}
}
