package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	module       = "github.com/agentsafe/agentsafe"
	maxLines     = 500 // of a file of code
	maxTestLines = 700 // of a file of tests, whose tables are long
	registryHost = `(registry|proxy|deb|sum|snapshot|security)\.(npmjs|golang|debian|nodesource)\.(org|com)`
)

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("%s %v: %v\n%s", name, args, err, exit.Stderr)
		}
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return strings.TrimSpace(string(out))
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tracked are the files that git knows, or would know after `git add`, relative to the root.
func tracked(t *testing.T) []string {
	t.Helper()
	dir := root(t)
	names := strings.Split(command(t, dir, "git", "ls-files", "--cached", "--others", "--exclude-standard"), "\n")
	return slices.DeleteFunc(names, func(name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err != nil || info.IsDir()
	})
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestFileLength(t *testing.T) {
	for _, name := range tracked(t) {
		if ext := filepath.Ext(name); ext != ".go" && ext != ".s" && ext != ".c" && ext != ".sh" {
			continue
		}
		most := maxLines
		if strings.HasSuffix(name, "_test.go") {
			most = maxTestLines
		}
		if n := bytes.Count(read(t, name), []byte("\n")); n > most {
			t.Errorf("%s has %d lines, at most %d: it wants a second room", name, n, most)
		}
	}
}

func TestNoGoFileInSharedFolders(t *testing.T) {
	for _, name := range tracked(t) {
		if dir := filepath.Dir(name); strings.HasSuffix(name, ".go") && (dir == "runtime" || dir == "fs" || dir == ".") {
			t.Errorf("%s: only packages below %s", name, dir)
		}
	}
}

// TestNoMachinePaths looks for where this checkout and what lies beside it are: such a path in a file works on one
// machine only.
func TestNoMachinePaths(t *testing.T) {
	dir := root(t)
	parent := filepath.Dir(dir)
	var paths []string
	entries, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	common := []string{"/", "/tmp", "/root", "/home", "/usr", "/var", "/opt", "/src", "/srv", "/usr/src"}
	for _, e := range entries {
		if e.IsDir() && (!slices.Contains(common, parent) || e.Name() == filepath.Base(dir)) {
			paths = append(paths, filepath.Join(parent, e.Name())+"/")
		}
	}
	if strings.Count(dir, "/") < 2 { // a checkout at /work would forbid a common word
		t.Skipf("probe checkout path: %s is too short to look for", dir)
	}
	for _, name := range tracked(t) {
		data := read(t, name)
		for _, p := range paths {
			if bytes.Contains(data, []byte(p)) {
				t.Errorf("%s holds the path %s of this machine", name, p)
			}
		}
	}
}

func TestNoRegistryHosts(t *testing.T) {
	host := regexp.MustCompile(registryHost)
	for _, name := range tracked(t) {
		if found := host.Find(read(t, name)); found != nil {
			t.Errorf("%s names the registry host %s: write a domain-suffix rule, or leave it to the client's configuration", name, found)
		}
	}
}

func TestNoBinaries(t *testing.T) {
	for _, name := range tracked(t) {
		if filepath.Base(filepath.Dir(name)) == "testdata" || strings.Contains(name, "/testdata/") {
			continue
		}
		data := read(t, name)
		if len(data) > 1<<20 || bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0 {
			t.Errorf("%s is a binary or over 1 MiB", name)
		}
	}
}

type goPackage struct {
	ImportPath, Dir, Name string
	GoFiles, Imports      []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	var list []goPackage
	for dec := json.NewDecoder(strings.NewReader(command(t, root(t), "go", "list", "-json=ImportPath,Dir,Name,GoFiles,Imports", "./..."))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

func TestEveryPackageHasDoc(t *testing.T) {
	for _, p := range packages(t) {
		if !slices.Contains(p.GoFiles, "doc.go") {
			t.Errorf("%s has no doc.go", p.ImportPath)
			continue
		}
		data, err := os.ReadFile(filepath.Join(p.Dir, "doc.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^(//|/\*) ?\S`).Match(data) || !strings.Contains(string(data), "\npackage "+p.Name) {
			t.Errorf("%s: doc.go says nothing", p.ImportPath)
		}
	}
}

// TestImportDirection holds cmd -> shim -> runtime/container -> {runtime/initproc, cgroup, audit} -> {fs, netns, profiles}.
func TestImportDirection(t *testing.T) {
	leaves := []string{"fs", "netns", "profiles"}
	list := packages(t)
	for _, rule := range []struct {
		from []string // folders
		deny []string
		why  string
	}{
		{leaves, []string{"runtime", "shim", "cmd", "integration"}, "leaves import nothing of ours but leaves"},
		{[]string{"runtime/initproc"}, []string{"runtime/container", "runtime/cgroup", "runtime/audit", "shim", "cmd", "integration"}, "the child's side must not see the host's"},
		{[]string{"runtime/cgroup", "runtime/audit"}, []string{"runtime/container", "runtime/initproc", "shim", "cmd", "integration"}, "arrows go one way"},
		{[]string{"runtime/container"}, []string{"shim", "cmd", "integration"}, "arrows go one way"},
		{[]string{"shim"}, []string{"cmd", "integration"}, "arrows go one way"},
		{[]string{"cmd"}, []string{"integration"}, "programs do not contain tests"},
		{[]string{"integration"}, []string{"runtime", "shim", "netns", "profiles", "fs"}, "integration tests use the programs, not the packages"},
	} {
		for _, p := range list {
			if !below(p.ImportPath, rule.from) {
				continue
			}
			for _, imported := range p.Imports {
				if below(imported, rule.deny) {
					t.Errorf("%s imports %s: %s", p.ImportPath, imported, rule.why)
				}
			}
		}
	}
}

func below(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool {
		return path == module+"/"+f || strings.HasPrefix(path, module+"/"+f+"/")
	})
}

// TestLightPrograms keeps out of the programs that engines start for every operation what costs start-up time.
func TestLightPrograms(t *testing.T) {
	heavy := regexp.MustCompile(`^(net/http|html/.*|text/template|testing|plugin|google\.golang\.org/.*|go\.yaml\.in/.*|gopkg\.in/yaml.*|sigs\.k8s\.io/yaml.*|` +
		`github\.com/(spf13|containerd/containerd|containerd/ttrpc|seccomp|google/nftables|pelletier|docker)/.*)$`)
	for _, program := range []string{"agentsafe", "agentsafe-seccomp"} {
		dir := "./cmd/" + program
		for dep := range strings.FieldsSeq(command(t, root(t), "go", "list", "-deps", dir)) {
			if program == "agentsafe-seccomp" && strings.HasPrefix(dep, "github.com/seccomp/") {
				continue // its whole purpose
			}
			if heavy.MatchString(dep) {
				t.Errorf("%s depends on %s", program, dep)
			}
		}
	}
}
