package rootless

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// bundle makes a bundle of the user's by `spec --rootless`, changed by mutate.
func (u *user) bundle(t testing.TB, mutate func(*specs.Spec)) string {
	t.Helper()
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	dir := u.folder(t)
	copyTree(t, busybox.Rootfs, filepath.Join(dir, "rootfs"), u)
	u.must(t, "agentsafe", "spec", "--rootless", "--bundle", dir)
	config := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	spec.Process.Terminal, spec.Root.Readonly, spec.Hostname = false, false, "box"
	// Debian's runc does not know later versions of the specification.
	spec.Version = "1.0.2"
	mutate(&spec)
	if data, err = json.Marshal(&spec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func sh(script string) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Process.Args = []string{"sh", "-c", script} }
}

func all(mutations ...func(*specs.Spec)) func(*specs.Spec) {
	return func(s *specs.Spec) {
		for _, m := range mutations {
			m(s)
		}
	}
}

// mapped gives the container a root that is one of the user's, and the subordinate ids.
func mapped(s *specs.Spec) {
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 4242, Size: 1}, {ContainerID: 1, HostID: 200000, Size: 65536}}
	s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
	c := s.Process.Capabilities
	for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Permitted} {
		*set = append(*set, "CAP_CHOWN", "CAP_SETUID", "CAP_SETGID")
	}
}

// TestRunBundle runs bundles as an ordinary user, under runc and under agentsafe.
func TestRunBundle(t *testing.T) {
	for _, tc := range []struct {
		name   string
		spec   func(*specs.Spec)
		exit   int
		stdout string
	}{
		{"one id", sh("id; hostname; touch /new && stat -c %u /new; exit 3"), 3, "^uid=0.*\nbox\n0\n$"},
		{"subordinate ids", all(mapped, sh("id -u; touch /x; chown 1000:1000 /x; stat -c %u /x; su app -c 'id -u' 2>/dev/null; true")), 0, "^0\n1000\n"},
		{"another user", all(mapped, sh("id -u; cat /proc/self/uid_map | wc -l"), func(s *specs.Spec) { s.Process.User = specs.User{UID: 1000, GID: 1000} }), 0, "^1000\n2\n$"},
		{"devices", sh("echo x >/dev/null; head -c 2 /dev/zero | wc -c; ls /dev | tr '\\n' ' '"), 0, `^2\n.*null.*zero`},
		{"masked and read-only", sh("cat /proc/timer_list | wc -c; echo 1 >/proc/sysrq-trigger"), 1, "^0\n$"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				dir := rick.bundle(t, tc.spec)
				return rick.do(t, peer(p), "--root", filepath.Join(rick.runtimeDir(), p.Name), "run", "--bundle", dir, box.ID())
			}, harness.SameExit, harness.Exits(tc.exit), harness.Prints(tc.stdout))
		})
	}
}

// peer is the path of a runtime that an ordinary user can execute.
func peer(p harness.Peer) string {
	if p.Name == "agentsafe" {
		return filepath.Join(installed, "agentsafe")
	}
	return p.Path
}

// TestLife goes through the commands that engines call, each in a process of its own.
func TestLife(t *testing.T) {
	for _, u := range []*user{rick, solo} {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			id := box.ID()
			dir := u.bundle(t, sh("trap 'exit 9' TERM; while :; do sleep 0.1; done"))
			u.must(t, "agentsafe", "create", "--bundle", dir, "--pid-file", filepath.Join(dir, "pid"), id)
			t.Cleanup(func() { u.must(t, "agentsafe", "delete", "--force", id) })
			status := func() string {
				var s struct{ Status, Owner string }
				if err := json.Unmarshal([]byte(u.must(t, "agentsafe", "state", id)), &s); err != nil {
					t.Fatal(err)
				}
				return s.Status
			}
			if got := status(); got != "created" {
				t.Errorf("status %q", got)
			}
			u.must(t, "agentsafe", "start", id)
			if r := u.do(t, "agentsafe", "exec", id, "sh", "-c", "id -u; hostname; exit 4"); r.Exit != 4 ||
				r.Stdout != "0\nbox\n" {
				t.Errorf("exec: %v", r)
			}
			if list := u.must(t, "agentsafe", "list"); !strings.Contains(list, id) || !strings.Contains(list, "running") {
				t.Errorf("list: %s", list)
			}
			for _, args := range [][]string{{"pause", id}, {"update", "--memory", "100000000", id}, {"events", "--stats", id}} {
				if r := u.do(t, append([]string{"agentsafe"}, args...)...); r.Exit == 0 || !strings.Contains(r.Stderr, "has no cgroup") {
					t.Errorf("without a cgroup: %v", r)
				}
			}
			u.must(t, "agentsafe", "kill", id, "TERM")
			for deadline := time.Now().Add(20 * time.Second); status() != "stopped"; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("it does not stop")
				}
			}
			u.must(t, "agentsafe", "delete", id)
			if r := u.do(t, "agentsafe", "state", id); r.Exit == 0 || !strings.Contains(r.Stderr, "does not exist") {
				t.Error(r)
			}
		})
	}
}

// TestRefused lists what an ordinary user asks for in vain, and what the answer names.
func TestRefused(t *testing.T) {
	memory := int64(64 << 20)
	for name, tc := range map[string]struct {
		user *user
		spec func(*specs.Spec)
		want string
	}{
		"no user namespace": {rick, func(s *specs.Spec) {
			s.Linux.Namespaces = s.Linux.Namespaces[:len(s.Linux.Namespaces)-1]
			s.Linux.UIDMappings, s.Linux.GIDMappings = nil, nil
		}, "needs a user namespace"},
		"ids of others": {rick, func(s *specs.Spec) { s.Linux.UIDMappings[0].HostID = 0 }, "id 0 is neither this user's nor one of the subordinate ids"},
		"too many ids":  {rick, all(mapped, func(s *specs.Spec) { s.Linux.UIDMappings[1].Size = 65537 }), "id 265536 is neither"},
		"no such ids":   {solo, mapped, "is neither this user's"},
		"memory limit": {rick, func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}}
		}, "controller memory is not delegated"},
		"a file that is closed to the user": {rick, func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/s", Type: "bind", Source: "/root/x", Options: []string{"bind"}})
		}, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := tc.user.do(t, "agentsafe", "run", "--bundle", tc.user.bundle(t, tc.spec), box.ID())
			if r.Exit == 0 || !strings.Contains(r.Stderr, tc.want) {
				t.Errorf("want %q:\n%v", tc.want, r)
			}
		})
	}
}

// TestAttack_StateOfAnother has root and users look at each other's state.
func TestAttack_StateOfAnother(t *testing.T) {
	id := box.ID()
	dir := rick.bundle(t, sh("sleep 1000"))
	rick.must(t, "agentsafe", "run", "--detach", "--bundle", dir, id)
	defer rick.must(t, "agentsafe", "delete", "--force", id)
	state := filepath.Join(rick.runtimeDir(), "agentsafe")
	agentsafe := filepath.Join(installed, "agentsafe")

	link := filepath.Join(box.TempDir(t), "link")
	own := filepath.Join(solo.folder(t), "state")
	open := solo.folder(t)
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(state, link); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		c    harness.Cmd
		want string
	}{
		"root, by path":           {harness.Cmd{Args: []string{agentsafe, "--root", state, "delete", "--force", id}}, "belongs to uid 4242"},
		"root, by link":           {harness.Cmd{Args: []string{agentsafe, "--root", link, "kill", id, "KILL"}}, "too many levels of symbolic links|not a directory"},
		"root's environment":      {harness.Cmd{Args: []string{agentsafe, "state", id}, Env: []string{"XDG_RUNTIME_DIR=" + rick.runtimeDir()}}, "does not exist"},
		"another user, by path":   {solo.cmd("agentsafe", "--root", state, "kill", id, "KILL"), "permission denied"},
		"another user, by XDG":    {env(solo.cmd("agentsafe", "state", id), "XDG_RUNTIME_DIR="+rick.runtimeDir()), "belongs to uid 4242"},
		"a directory of everyone": {env(solo.cmd("agentsafe", "list"), "XDG_RUNTIME_DIR="+open), "nobody else can write to"},
		"no such id elsewhere":    {solo.cmd("agentsafe", "--root", own, "state", id), "does not exist"},
	} {
		if r := box.Run(t, tc.c); r.Exit == 0 || !regexp.MustCompile(tc.want).MatchString(r.Stderr) {
			t.Errorf("%s: want %q:\n%v", name, tc.want, r)
		}
	}
	if s := rick.must(t, "agentsafe", "state", id); !strings.Contains(s, `"running"`) {
		t.Errorf("the container did not survive: %s", s)
	}
	if mode := fmt.Sprintf("%o", must(os.Stat(state)).Mode().Perm()); mode != "700" {
		t.Errorf("mode of the state directory: %s", mode)
	}
}

func env(c harness.Cmd, more ...string) harness.Cmd {
	c.Env = append(c.Env, more...)
	return c
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
