package rootfs

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func plan(t *testing.T, m specs.Mount) Mount {
	t.Helper()
	if m.Destination == "" {
		m.Destination = "/mnt"
	}
	out, err := PlanMounts([]specs.Mount{m})
	if err != nil {
		t.Fatalf("%v: %v", m.Options, err)
	}
	return out[0]
}

// Every mount option of the specification, with what the kernel is told. Source: runtime-spec 1.3.0, config.md "Linux
// mount options".
func TestPlanMountsOptions(t *testing.T) {
	const atime = unix.MOUNT_ATTR__ATIME
	attr := func(set, unset uint64) Mount { return Mount{Attr: Attr{set, unset}} }
	rec := func(set, unset uint64) Mount { return Mount{RecAttr: Attr{set, unset}} }
	for option, want := range map[string]Mount{
		"ro": attr(unix.MOUNT_ATTR_RDONLY, 0), "rw": attr(0, unix.MOUNT_ATTR_RDONLY),
		"nosuid": attr(unix.MOUNT_ATTR_NOSUID, 0), "suid": attr(0, unix.MOUNT_ATTR_NOSUID),
		"nodev": attr(unix.MOUNT_ATTR_NODEV, 0), "dev": attr(0, unix.MOUNT_ATTR_NODEV),
		"noexec": attr(unix.MOUNT_ATTR_NOEXEC, 0), "exec": attr(0, unix.MOUNT_ATTR_NOEXEC),
		"nodiratime": attr(unix.MOUNT_ATTR_NODIRATIME, 0), "diratime": attr(0, unix.MOUNT_ATTR_NODIRATIME),
		"nosymfollow": attr(unix.MOUNT_ATTR_NOSYMFOLLOW, 0), "symfollow": attr(0, unix.MOUNT_ATTR_NOSYMFOLLOW),
		"noatime": attr(unix.MOUNT_ATTR_NOATIME, atime), "atime": attr(0, atime), "relatime": attr(0, atime),
		"norelatime": attr(unix.MOUNT_ATTR_STRICTATIME, atime), "strictatime": attr(unix.MOUNT_ATTR_STRICTATIME, atime),
		"nostrictatime": attr(0, atime),

		"rro": rec(unix.MOUNT_ATTR_RDONLY, 0), "rrw": rec(0, unix.MOUNT_ATTR_RDONLY),
		"rnosuid": rec(unix.MOUNT_ATTR_NOSUID, 0), "rsuid": rec(0, unix.MOUNT_ATTR_NOSUID),
		"rnodev": rec(unix.MOUNT_ATTR_NODEV, 0), "rdev": rec(0, unix.MOUNT_ATTR_NODEV),
		"rnoexec": rec(unix.MOUNT_ATTR_NOEXEC, 0), "rexec": rec(0, unix.MOUNT_ATTR_NOEXEC),
		"rnodiratime": rec(unix.MOUNT_ATTR_NODIRATIME, 0), "rdiratime": rec(0, unix.MOUNT_ATTR_NODIRATIME),
		"rnosymfollow": rec(unix.MOUNT_ATTR_NOSYMFOLLOW, 0), "rsymfollow": rec(0, unix.MOUNT_ATTR_NOSYMFOLLOW),
		"rnoatime": rec(unix.MOUNT_ATTR_NOATIME, atime), "ratime": rec(0, atime), "rrelatime": rec(0, atime),
		"rnorelatime": rec(unix.MOUNT_ATTR_STRICTATIME, atime), "rstrictatime": rec(unix.MOUNT_ATTR_STRICTATIME, atime),
		"rnostrictatime": rec(0, atime),

		"private": {Propagation: unix.MS_PRIVATE}, "rprivate": {Propagation: unix.MS_PRIVATE, PropagationRec: true},
		"slave": {Propagation: unix.MS_SLAVE}, "rslave": {Propagation: unix.MS_SLAVE, PropagationRec: true},
		"shared": {Propagation: unix.MS_SHARED}, "rshared": {Propagation: unix.MS_SHARED, PropagationRec: true},
		"unbindable": {Propagation: unix.MS_UNBINDABLE}, "runbindable": {Propagation: unix.MS_UNBINDABLE, PropagationRec: true},

		"bind": {Bind: true}, "rbind": {Bind: true, Recursive: true},
		"idmap": {IDMap: true}, "ridmap": {IDMap: true, IDMapRec: true}, "tmpcopyup": {CopyUp: true},

		"sync": {Options: []Option{{Key: "sync", Flag: true}}}, "dirsync": {Options: []Option{{Key: "dirsync", Flag: true}}},
		"lazytime": {Options: []Option{{Key: "lazytime", Flag: true}}}, "mand": {Options: []Option{{Key: "mand", Flag: true}}},
		"defaults": {}, "async": {}, "nolazytime": {}, "nomand": {}, "silent": {}, "loud": {}, "remount": {}, "": {},
		"iversion": {}, "noiversion": {}, "acl": {}, "noacl": {},

		// Whatever is left is the file system's.
		"size=64k": {Options: []Option{{Key: "size", Value: "64k"}}}, "newinstance": {Options: []Option{{Key: "newinstance", Flag: true}}},
		"lowerdir=/a=b": {Options: []Option{{Key: "lowerdir", Value: "/a=b"}}}, "mode=": {Options: []Option{{Key: "mode"}}},
		"r": {Options: []Option{{Key: "r", Flag: true}}}, "RO": {Options: []Option{{Key: "RO", Flag: true}}},
	} {
		in := specs.Mount{Type: "tmpfs", Source: "src", Options: []string{option}}
		want.Destination, want.Type, want.Source = "/mnt", "tmpfs", "src"
		if got := plan(t, in); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, want %+v", option, got, want)
		}
	}
}

// The last word on a bit wins, and words on other bits stay.
func TestPlanMountsLastOptionWins(t *testing.T) {
	const atime = unix.MOUNT_ATTR__ATIME
	for options, want := range map[string]Mount{
		"ro,rw":                  {Attr: Attr{0, unix.MOUNT_ATTR_RDONLY}},
		"rw,ro":                  {Attr: Attr{unix.MOUNT_ATTR_RDONLY, 0}},
		"ro,nosuid,suid,rw,ro":   {Attr: Attr{unix.MOUNT_ATTR_RDONLY, unix.MOUNT_ATTR_NOSUID}},
		"noatime,strictatime":    {Attr: Attr{unix.MOUNT_ATTR_STRICTATIME, atime&^unix.MOUNT_ATTR_STRICTATIME | unix.MOUNT_ATTR_STRICTATIME}},
		"strictatime,relatime":   {Attr: Attr{0, atime}},
		"rro,rrw":                {RecAttr: Attr{0, unix.MOUNT_ATTR_RDONLY}},
		"ro,rrw":                 {Attr: Attr{unix.MOUNT_ATTR_RDONLY, 0}, RecAttr: Attr{0, unix.MOUNT_ATTR_RDONLY}},
		"rshared,private":        {Propagation: unix.MS_PRIVATE},
		"private,rslave":         {Propagation: unix.MS_SLAVE, PropagationRec: true},
		"nodev,noexec,nosuid,ro": {Attr: Attr{Set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_RDONLY}},
	} {
		got := plan(t, specs.Mount{Type: "tmpfs", Options: strings.Split(options, ",")})
		want.Destination, want.Type = "/mnt", "tmpfs"
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", options, got, want)
		}
		// mount_setattr(2) answers EINVAL when a value of the access time field is set without clearing the field.
		for _, a := range []Attr{got.Attr, got.RecAttr} {
			if a.Set&atime != 0 && a.Clear&atime != atime {
				t.Errorf("%s: access time set by %#x without clearing all of the field (%#x)", options, a.Set, a.Clear)
			}
		}
	}
}

// apply's invariant, for all sequences of three options: no bit but the access time's is both set and cleared.
func TestPlanMountsAttrNeverSetAndCleared(t *testing.T) {
	var names []string
	for n := range attrOptions {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, a := range names {
		for _, b := range names {
			for _, c := range names {
				m := plan(t, specs.Mount{Type: "tmpfs", Options: []string{a, b, c, "r" + c, "r" + b}})
				for _, attr := range []Attr{m.Attr, m.RecAttr} {
					if both := attr.Set & attr.Clear &^ unix.MOUNT_ATTR__ATIME; both != 0 {
						t.Fatalf("%s,%s,%s: bits %#x are set and cleared", a, b, c, both)
					}
					if attr.Set&unix.MOUNT_ATTR__ATIME != 0 && attr.Clear&unix.MOUNT_ATTR__ATIME != unix.MOUNT_ATTR__ATIME {
						t.Fatalf("%s,%s,%s: access time %#x set, %#x cleared", a, b, c, attr.Set, attr.Clear)
					}
				}
			}
		}
	}
}

func TestPlanMountsKinds(t *testing.T) {
	maps := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1000, Size: 1}}
	for name, c := range map[string]struct{ in, want Mount }{
		"bind type":          {Mount{Type: "bind", Source: "/a"}, Mount{Type: "bind", Source: "/a", Bind: true}},
		"cgroup":             {Mount{Type: "cgroup"}, Mount{Type: "cgroup", Cgroup: true}},
		"cgroup2":            {Mount{Type: "cgroup2"}, Mount{Type: "cgroup2", Cgroup: true}},
		"mappings are idmap": {Mount{Type: "bind", Source: "/a", UIDMappings: maps}, Mount{Type: "bind", Source: "/a", Bind: true, IDMap: true, UIDMappings: maps}},
	} {
		want := c.want
		want.Destination = "/mnt"
		got := plan(t, specs.Mount{Type: c.in.Type, Source: c.in.Source, UIDMappings: c.in.UIDMappings})
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	// A bind mount of a cgroup directory is a bind mount.
	if m := plan(t, specs.Mount{Type: "cgroup", Source: "/a", Options: []string{"bind", "size=1"}}); m.Cgroup || !m.Bind || m.Options != nil {
		t.Errorf("bind of type cgroup: %+v", m)
	}
}

func TestPlanMountsDestinations(t *testing.T) {
	for in, want := range map[string]string{
		"/a": "/a", "a": "/a", "/a/": "/a", "//a//b": "/a/b", "/a/../b": "/b", "../../b": "/b", "/": "/", ".": "/",
		"/a/./b/..": "/a", "/a\n": "/a\n", "/..": "/",
	} {
		if got := plan(t, specs.Mount{Destination: in, Type: "tmpfs"}); got.Destination != want {
			t.Errorf("destination %q became %q, want %q", in, got.Destination, want)
		}
	}
}

// An error names the mount by index and destination, and what is wrong with it.
func TestPlanMountsErrors(t *testing.T) {
	for name, c := range map[string]struct {
		m    specs.Mount
		want string
	}{
		"no destination":     {specs.Mount{Type: "tmpfs"}, "destination is empty"},
		"NUL in destination": {specs.Mount{Destination: "/a\x00b", Type: "tmpfs"}, "NUL"},
		"NUL in source":      {specs.Mount{Destination: "/a", Source: "/b\x00", Type: "bind"}, "NUL"},
		// The kernel would read "proc", while whoever judges the plan reads something else.
		"NUL in type":          {specs.Mount{Destination: "/a", Type: "proc\x00x"}, "NUL"},
		"NUL in option":        {specs.Mount{Destination: "/a", Type: "tmpfs", Options: []string{"mode=777\x00x"}}, "NUL"},
		"type none":            {specs.Mount{Destination: "/a", Type: "none"}, `type "none"`},
		"no type":              {specs.Mount{Destination: "/a"}, `type ""`},
		"bind without source":  {specs.Mount{Destination: "/a", Type: "bind"}, "without a source"},
		"rbind without source": {specs.Mount{Destination: "/a", Options: []string{"rbind"}}, "without a source"},
	} {
		good := specs.Mount{Destination: "/good", Type: "tmpfs"}
		_, err := PlanMounts([]specs.Mount{good, c.m})
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		if got := err.Error(); !strings.HasPrefix(got, "mounts[1] (destination ") || !strings.Contains(got, c.want) {
			t.Errorf("%s: error %q, want index, destination and %q", name, got, c.want)
		}
	}
}

func TestPropagation(t *testing.T) {
	for in, want := range map[string]struct {
		flag uint64
		rec  bool
	}{
		"": {unix.MS_SLAVE, true}, "private": {unix.MS_PRIVATE, false}, "rprivate": {unix.MS_PRIVATE, true},
		"slave": {unix.MS_SLAVE, false}, "rslave": {unix.MS_SLAVE, true}, "shared": {unix.MS_SHARED, false},
		"rshared": {unix.MS_SHARED, true}, "unbindable": {unix.MS_UNBINDABLE, false}, "runbindable": {unix.MS_UNBINDABLE, true},
	} {
		got, rec, err := Propagation(in)
		if err != nil || got != want.flag || rec != want.rec {
			t.Errorf("%q: %#x %v %v, want %#x %v", in, got, rec, err, want.flag, want.rec)
		}
	}
	for _, in := range []string{"rrslave", "Slave", "r", "ro", "slave ", "rro"} {
		if _, _, err := Propagation(in); err == nil || !strings.Contains(err.Error(), "linux.rootfsPropagation") {
			t.Errorf("%q: error %v", in, err)
		}
	}
}

// The mounts that Docker 20.10 asks for, as a golden file.
func TestPlanMountsDocker(t *testing.T) {
	var in []specs.Mount
	data, err := os.ReadFile("testdata/docker-mounts.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &in); err != nil {
		t.Fatal(err)
	}
	out, err := PlanMounts(in)
	if err != nil {
		t.Fatal(err)
	}
	got := describe(out)
	const golden = "testdata/docker-mounts.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("the plan is not that of %s (-update rewrites it):\n%s", golden, got)
	}
}

// describe prints a plan for people, a line for each mount.
func describe(plan []Mount) string {
	var b strings.Builder
	for i := range plan {
		m := &plan[i]
		fmt.Fprintf(&b, "%s: type=%s source=%s", m.Destination, m.Type, m.Source)
		if m.Bind {
			fmt.Fprintf(&b, " bind recursive=%v", m.Recursive)
		}
		if m.Cgroup {
			b.WriteString(" cgroup")
		}
		for _, o := range m.Options {
			fmt.Fprintf(&b, " %s=%q", o.Key, o.Value)
		}
		for _, a := range []struct {
			name string
			bits uint64
		}{{"set", m.Attr.Set}, {"clear", m.Attr.Clear}, {"rset", m.RecAttr.Set}, {"rclear", m.RecAttr.Clear}} {
			for name, o := range attrOptions {
				if strings.HasPrefix(name, "no") && o.set != 0 && name != "norelatime" || name == "ro" || name == "strictatime" {
					if a.bits&o.set != 0 {
						a.name += "," + name
					}
				}
			}
			if a.bits != 0 {
				words := strings.Split(a.name, ",")
				slices.Sort(words[1:])
				fmt.Fprintf(&b, " %s:%s", words[0], strings.Join(words[1:], ","))
			}
		}
		if m.Propagation != 0 {
			for name, p := range propagationOptions {
				if p == m.Propagation {
					fmt.Fprintf(&b, " %s recursive=%v", name, m.PropagationRec)
				}
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// FuzzPlanMounts: no input may crash the planner or lead to a destination that is not absolute and clean.
func FuzzPlanMounts(f *testing.F) {
	f.Add("/a", "tmpfs", "", "ro,nosuid,mode=1777")
	f.Add("../..", "bind", "/x", "rbind,rro,rprivate")
	f.Add("\x00", "none", "", "=,r=,==")
	engines, err := filepath.Glob("../../profiles/testdata/*.json")
	if err != nil || len(engines) == 0 {
		f.Fatalf("no specs of engines: %v", err)
	}
	for _, name := range engines {
		data, err := os.ReadFile(name)
		var s specs.Spec
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		if err != nil {
			f.Fatal(err)
		}
		for _, m := range s.Mounts {
			f.Add(m.Destination, m.Type, m.Source, strings.Join(m.Options, ","))
		}
	}
	f.Fuzz(func(t *testing.T, destination, kind, source, options string) {
		out, err := PlanMounts([]specs.Mount{{Destination: destination, Type: kind, Source: source, Options: strings.Split(options, ",")}})
		if err != nil {
			return
		}
		m := out[0]
		if !strings.HasPrefix(m.Destination, "/") || strings.Contains(m.Destination+"/", "/../") || strings.ContainsRune(m.Destination+m.Type+m.Source, 0) {
			t.Fatalf("destination %q, type %q, source %q", m.Destination, m.Type, m.Source)
		}
		if m.Bind && m.Source == "" {
			t.Fatal("bind without a source")
		}
	})
}
