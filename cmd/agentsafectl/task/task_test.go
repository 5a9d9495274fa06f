package task

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func update() bool { return flag.Lookup("update").Value.String() == "true" }

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite golden files")
	flag.Parse()
	os.Exit(m.Run())
}

const (
	testPasswd = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
		"alice:x:1000:1000:Alice Liddell,,,:/home/alice:/bin/bash\nbob:$6$hash:1001:1001::/home/bob:/bin/sh\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	testGroup = "root:x:0:\nstaff:x:50:bob\nalice:x:1000:\nbob:x:1001:\n"
)

func testHost() *Host {
	return &Host{
		Top:    []Top{{Name: "usr"}, {Name: "bin", Link: "usr/bin"}, {Name: "opt"}},
		Etc:    Etc{Nodes: []Node{fileNode("etc/services", "http 80/tcp\n"), dirNode("etc/perl", 0o755)}, Binds: []string{"perl"}},
		Homes:  []string{"/root", "/home/alice", "/home/bob"},
		Passwd: []byte(testPasswd), Group: []byte(testGroup), GoBin: "/usr/local/go/bin",
	}
}

func TestPlanHostGolden(t *testing.T) {
	r := &Request{
		ID: "t", Command: []string{"make", "test"}, Env: []string{"LANG=de_DE.UTF-8", "X=1"},
		Workspace: "/home/alice/project", Network: NetworkNone, Terminal: true, Term: "xterm-256color", Rows: 24, Columns: 80,
		MemoryMaxBytes: 1 << 30, PIDsMax: 100, CPUs: 1.5,
	}
	p, err := PlanHost(r, account([]byte(testPasswd), 1000, 0), testHost(), "/r/rootfs")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "host", p)
}

func TestPlanRootGolden(t *testing.T) {
	r := &Request{ID: "t", Command: []string{"sh"}, Workspace: "/src/p", Network: NetworkNone}
	p, err := PlanRoot(r, User{UID: 0, Home: "/root"}, Root{
		Dir: "/r/rootfs", Env: []string{"PATH=/bin", "A=b"}, WorkingDir: "/app", FilesDir: "/r/files",
	}, []string{"/root"})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "root", p)
}

// golden compares the plan, its skeleton as one line per node.
func golden(t *testing.T, name string, p *Plan) {
	t.Helper()
	spec, err := json.MarshalIndent(p.Spec, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.Write(spec)
	b.WriteByte('\n')
	for _, n := range p.Skeleton {
		switch {
		case n.Target != "":
			b.WriteString(n.Path + " -> " + n.Target + "\n")
		case n.isDir():
			b.WriteString(n.Path + "/\n")
		default:
			b.WriteString(n.Path + ": " + strings.ReplaceAll(strings.TrimSuffix(string(n.Data), "\n"), "\n", "\n    ") + "\n")
		}
	}
	path := filepath.Join("testdata", name+".golden")
	if update() {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != b.String() {
		t.Errorf("%s differs (%v); rerun with -update and read the diff. Got:\n%s", path, err, b.String())
	}
}

func TestCheckWorkspace(t *testing.T) {
	homes := []string{"/root", "/home/alice"}
	tests := map[string]string{
		"/home/alice/project":    "",
		"/root/project":          "",
		"/tmp/x":                 "",
		"/usr/src/x":             "",
		"/opt/project":           "",
		"/homework":              "",
		"/":                      "system directory",
		"/usr":                   "system directory",
		"/var":                   "system directory",
		"/home":                  "system directory",
		"/tmp":                   "system directory",
		"/home/alice":            "home directory",
		"/root":                  "system directory",
		"/etc":                   "system directory",
		"/etc/x":                 "belongs to the system",
		"/proc/1/cwd":            "belongs to the system",
		"/dev/shm/x":             "belongs to the system",
		"/var/lib/agentsafe/run": "belongs to the system",
		"relative":               "not an absolute",
		"/a/../etc":              "not an absolute",
	}
	for dir, want := range tests {
		err := checkWorkspace(dir, homes)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("checkWorkspace(%q) = %v, want %q", dir, err, want)
		}
	}
}

func TestRequestRefused(t *testing.T) {
	ok := Request{Command: []string{"x"}, Workspace: "/p/q", Network: NetworkNone}
	tests := map[string]struct {
		change func(*Request)
		want   string
	}{
		"no command":   {func(r *Request) { r.Command = nil }, "no command"},
		"empty argv0":  {func(r *Request) { r.Command = []string{""} }, "no command"},
		"network":      {func(r *Request) { r.Network = "bridge" }, "network \"bridge\""},
		"environment":  {func(r *Request) { r.Env = []string{"X"} }, "not NAME=VALUE"},
		"NUL":          {func(r *Request) { r.Env = []string{"X=\x00"} }, "not NAME=VALUE"},
		"no workspace": {func(r *Request) { r.Workspace = "" }, "no workspace"},
		"limit":        {func(r *Request) { r.CPUs = -1 }, "negative"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := ok
			tt.change(&r)
			_, err := PlanHost(&r, User{Home: "/home/agent"}, testHost(), "/r")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestAttack_CallerEnvironment: nothing of the caller's environment may get in.
func TestAttack_CallerEnvironment(t *testing.T) {
	t.Setenv("SECRET_TOKEN", "hunter2")
	r := &Request{Command: []string{"x"}, Workspace: "/p/q", Network: NetworkNone, Terminal: true, Term: "x\nLD_PRELOAD=/evil"}
	p, err := PlanHost(r, User{Home: "/home/agent"}, testHost(), "/r")
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range p.Spec.Process.Env {
		name, value, _ := strings.Cut(kv, "=")
		if !slices.Contains([]string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "TERM"}, name) || strings.Contains(value, "evil") {
			t.Errorf("environment holds %q", kv)
		}
	}
}

func TestAccount(t *testing.T) {
	tests := map[string]struct {
		uid  uint32
		want User
	}{
		"person":  {1000, User{UID: 1000, GID: 1000, Name: "alice", Home: "/home/alice"}},
		"root":    {0, User{Name: "root", Home: "/root"}},
		"daemon":  {1, User{UID: 1, GID: 1, Name: "daemon", Home: "/home/agent"}}, // its home is /usr/sbin
		"unknown": {4242, User{UID: 4242, GID: 9, Home: "/home/agent"}},
	}
	for name, tt := range tests {
		got := account([]byte(testPasswd), tt.uid, 9)
		if got.UID != tt.want.UID || got.GID != tt.want.GID || got.Name != tt.want.Name || got.Home != tt.want.Home {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
	for _, bad := range []string{"", "-1", "+1", "0x10", "4294967295", "4294967296", "alice", "1:", "1:x"} {
		if u, err := UserByID(bad, nil); err == nil {
			t.Errorf("UserByID(%q) = %+v", bad, u)
		}
	}
	if u, err := UserByID("1001:50", []byte(testPasswd)); err != nil || u.UID != 1001 || u.GID != 50 || u.Home != "/home/bob" {
		t.Errorf("UserByID = %+v, %v", u, err)
	}
}

func TestPasswdTellsLittle(t *testing.T) {
	got := passwdFor([]byte(testPasswd), User{UID: 1000, GID: 1000, Home: "/home/alice"}, "alice")
	for _, secret := range []string{"bob", "Liddell", "$6$", "/bin/bash\nalice"} {
		if strings.Contains(got, secret) {
			t.Errorf("passwd holds %q:\n%s", secret, got)
		}
	}
	if strings.Count(got, "alice:x:") != 1 || !strings.Contains(got, "root:x:0:0") {
		t.Errorf("passwd:\n%s", got)
	}
}

// TestAttack_EtcSecrets: what must not be copied, although it stands beside or
// below what may.
func TestAttack_EtcSecrets(t *testing.T) {
	etc := t.TempDir()
	write := func(name, data string, mode os.FileMode) {
		t.Helper()
		p := filepath.Join(etc, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, []byte(data), 0o600))
		must(t, os.Chmod(p, mode))
	}
	write("services", "ok", 0o644)
	write("ssl/certs/ca.pem", "-----BEGIN CERTIFICATE-----", 0o644)
	write("ssl/certs/oops.pem", "-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\n", 0o644)
	write("ssl/certs/quiet.pem", "SECRET", 0o600)
	write("ssl/private/key.pem", "SECRET", 0o644)
	write("perl/sub/x", "ok", 0o755)
	write("alternatives/x", "ok", 0o644)
	write("vim/x.pem", "-----BEGIN PRIVATE KEY-----", 0o644)
	write("fonts/closed/x", "SECRET", 0o644)
	write("big.conf", "", 0o644)
	for _, secret := range []string{"shadow", "sudoers", "machine-id", "gitconfig", "ssh/ssh_host_key", "profile", "environment", "npmrc"} {
		write(secret, "SECRET", 0o644)
	}
	for link, target := range map[string]string{"localtime": "/usr/share/zoneinfo/UTC", "magic": "shadow"} {
		must(t, os.Symlink(target, filepath.Join(etc, link)))
	}
	must(t, os.Chmod(filepath.Join(etc, "fonts/closed"), 0o700))
	must(t, unix.Mkfifo(filepath.Join(etc, "hosts.fifo"), 0o644))
	must(t, unix.Mkfifo(filepath.Join(etc, "perl/fifo"), 0o644))
	root, err := os.OpenRoot(etc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, root.Close()) })
	found, err := readEtc(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range found.Nodes {
		got = append(got, n.Path)
		if strings.Contains(string(n.Data), "SECRET") || strings.Contains(string(n.Data), "PRIVATE") {
			t.Errorf("%s holds a secret", n.Path)
		}
	}
	slices.Sort(got)
	want := []string{
		"etc/alternatives", "etc/fonts", "etc/localtime", "etc/magic", "etc/perl", "etc/perl/sub", "etc/perl/sub/x",
		"etc/services", "etc/ssl", "etc/ssl/certs", "etc/ssl/certs/ca.pem", "etc/vim",
	}
	if !slices.Equal(got, want) {
		t.Errorf("copied %q, want %q", got, want)
	}
	// perl has a FIFO, fonts a closed directory, ssl/certs and vim a private key.
	if !slices.Equal(found.Binds, []string{"alternatives"}) {
		t.Errorf("bound %q", found.Binds)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWriteSkeleton(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	p := t.TempDir()
	root, err := os.OpenRoot(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, root.Close()) })
	nodes := []Node{
		dirNode("etc", 0o755), linkNode("etc/a", "/x"), fileNode("etc/a", "file"), fileNode("etc/b", "1"),
		linkNode("etc/b", "a"), dirNode("tmp", 0o777), dirNode("etc", 0o755),
	}
	if err := WriteSkeleton(root, nodes); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(p, "etc/a")); err != nil || string(data) != "file" {
		t.Errorf("etc/a = %q, %v", data, err)
	}
	if target, err := os.Readlink(filepath.Join(p, "etc/b")); err != nil || target != "a" {
		t.Errorf("etc/b -> %q, %v", target, err)
	}
	for name, want := range map[string]os.FileMode{"etc": 0o755, "tmp": 0o777, "etc/a": 0o644} {
		if info, err := os.Stat(filepath.Join(p, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if err := WriteSkeleton(root, []Node{fileNode("../out", "x")}); err == nil {
		t.Error("a node outside of the skeleton was written")
	}
}

// TestReadHost holds this machine to the rules.
func TestReadHost(t *testing.T) {
	h, err := ReadHost("/home/somebody")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(h.Homes, "/home/somebody") || len(h.Top) == 0 || len(h.Etc.Nodes) == 0 {
		t.Errorf("host = %d top, %d etc, homes %q", len(h.Top), len(h.Etc.Nodes), h.Homes)
	}
	for _, n := range h.Etc.Nodes {
		base := filepath.Base(n.Path)
		if slices.Contains([]string{"shadow", "gshadow", "sudoers", "machine-id"}, base) || strings.HasPrefix(base, "ssh_host_") {
			t.Errorf("copied %s", n.Path)
		}
	}
}

// TestAttack_WorkspaceSwapped: a link put in the folder's place after the check
// changes nothing.
func TestAttack_WorkspaceSwapped(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	folder, secret := filepath.Join(base, "folder"), filepath.Join(base, "secret")
	must(t, os.Mkdir(folder, 0o755))
	must(t, os.Mkdir(secret, 0o755))
	must(t, os.WriteFile(filepath.Join(secret, "key"), nil, 0o600))
	must(t, os.Symlink(folder, filepath.Join(base, "link")))
	f, path, err := OpenWorkspace(filepath.Join(base, "link"))
	must(t, err)
	defer f.Close()
	if path != folder {
		t.Errorf("path %q, want %q", path, folder)
	}
	must(t, os.Rename(folder, folder+"-away"))
	must(t, os.Symlink(secret, folder))
	if list, err := os.ReadDir(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil || len(list) != 0 {
		t.Errorf("the handle leads to %v, %v", list, err)
	}
	for _, bad := range []string{filepath.Join(base, "none"), filepath.Join(secret, "key")} {
		if _, path, err := OpenWorkspace(bad); err == nil {
			t.Errorf("OpenWorkspace(%q) = %q", bad, path)
		}
	}
}

// TestOpenWorkspaceRemoved: the working directory of a shell may be gone.
func TestOpenWorkspaceRemoved(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	must(t, os.Mkdir(gone, 0o755))
	t.Chdir(gone)
	must(t, os.Remove(gone))
	if _, path, err := OpenWorkspace("."); err == nil {
		t.Errorf("a folder that is gone was opened as %q", path)
	}
}
