package container

import (
	"reflect"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/profiles"
)

func TestMountedAlong(t *testing.T) {
	const text = `21 1 8:1 / / rw,relatime - ext4 /dev/root rw
22 21 0:5 / /proc rw,nosuid - proc proc rw
23 21 0:20 / /run rw shared:3 - tmpfs tmpfs rw,mode=755
30 21 8:1 /etc /srv/a\040jail/e rw,relatime shared:1 - ext4 /dev/root rw
31 21 0:5 / /srv/a\040jail/proc rw - proc proc rw
32 21 0:20 /lock /srv/a\040jail/l rw - tmpfs tmpfs rw
33 21 8:2 / /srv/a\040jailer/x rw - ext4 /dev/b rw
34 21 8:2 /@home/u /srv/home rw - btrfs /dev/b rw
35 21 8:2 /@ /srv/at rw - btrfs /dev/b rw
garbage
36 21 8:9
`
	all := parseMounts(text)
	if len(all) != 9 {
		t.Errorf("%d mounts: %+v", len(all), all)
	}
	for _, c := range []struct {
		dir       string
		recursive bool
		want      []profiles.MountedFacts
	}{
		{"/srv/a jail", true, []profiles.MountedFacts{
			{At: "/srv/a jail/e", Type: "ext4", Names: []string{"/etc"}},
			{At: "/srv/a jail/proc", Type: "proc", Names: []string{"/proc"}},
			{At: "/srv/a jail/l", Type: "tmpfs", Names: []string{"/run/lock"}},
		}},
		{"/srv/a jail", false, nil},
		{"/srv/a jail/proc", false, []profiles.MountedFacts{{At: "/srv/a jail/proc", Type: "proc", Names: []string{"/proc"}}}},
		{"/srv/home", true, []profiles.MountedFacts{{At: "/srv/home", Type: "btrfs", Names: []string{"/srv/a jailer/x/@home/u"}}}}, // and not of /@
		{"/srv/none", true, nil},
	} {
		if got := mountedAlong(all, c.dir, c.recursive); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, %t: %+v, want %+v", c.dir, c.recursive, got, c.want)
		}
	}
	for path, want := range map[string]string{"/a b": `/a\040b`, `/a\b`: `/a\134b`, "/a\nb\tc": `/a\012b\011c`, `/\040`: `/\134040`} {
		if got := escapeMount(path); got != want || unescapeMount(got) != path {
			t.Errorf("%q is %q, and back %q", path, got, unescapeMount(got))
		}
	}
}

// FuzzMounts: names of mount points are whatever somebody has called a directory.
func FuzzMounts(f *testing.F) {
	f.Add("/srv/a b", "/etc", "proc")
	f.Add("/a\\040b", "/ - ", "x - y")
	f.Add("/\n", "/\v\u00a0", "x")
	f.Fuzz(func(t *testing.T, at, root, kind string) {
		if got := unescapeMount(escapeMount(at)); got != at {
			t.Errorf("%q comes back as %q", at, got)
		}
		if at == "" || at[0] != '/' || root == "" || root[0] != '/' || kind == "" || strings.ContainsAny(kind, " \n") {
			return
		}
		line := "1 2 8:1 " + escapeMount(root) + " " + escapeMount(at) + " rw shared:1 - " + kind + " src rw\n"
		all := parseMounts(line)
		if len(all) != 1 || all[0] != (hostMount{"8:1", root, at, kind}) {
			t.Errorf("%q gives %+v", line, all)
		}
	})
}
