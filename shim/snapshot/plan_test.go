package snapshot

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPlanMount(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   Mount
		want Plan
		err  string
	}{
		{
			name: "overlay",
			in:   Mount{Type: "overlay", Source: "overlay", Options: []string{"index=off", "workdir=/w", "upperdir=/u", "lowerdir=/a:/b"}},
			want: Plan{Source: "overlay", Target: "/r", Type: "overlay", Data: "index=off,workdir=/w,upperdir=/u,lowerdir=/a:/b"},
		},
		{
			name: "read-only bind", in: Mount{Type: "bind", Source: "/s", Options: []string{"rbind", "ro", "rslave"}},
			want: Plan{Source: "/s", Target: "/r", Type: "bind", Flags: unix.MS_BIND | unix.MS_REC | unix.MS_RDONLY, Propagation: unix.MS_SLAVE | unix.MS_REC},
		},
		{name: "later options win", in: Mount{Type: "ext4", Source: "/d", Options: []string{"ro", "rw", "nosuid"}}, want: Plan{Source: "/d", Target: "/r", Type: "ext4", Flags: unix.MS_NOSUID}},
		{name: "below", in: Mount{Type: "tmpfs", Source: "t", Target: "/sub"}, want: Plan{Source: "t", Target: "/r/sub", Type: "tmpfs"}},
		{name: "outside", in: Mount{Type: "tmpfs", Source: "t", Target: "/../x"}, err: "outside"},
		{name: "transform", in: Mount{Type: "format/overlay"}, err: "mount manager"},
		{name: "fuse", in: Mount{Type: "fuse3.x"}, err: "mount manager"},
		{name: "loop", in: Mount{Type: "erofs", Options: []string{"loop"}}, err: "not supported"},
		{
			name: "mapped overlay",
			in:   Mount{Type: "overlay", Source: "overlay", Options: []string{"workdir=/w", "upperdir=/u", "lowerdir=/a:/b", "uidmap=0:1:2", "gidmap=0:1:2,2:9:1"}},
			want: Plan{Source: "overlay", Target: "/r", Type: "overlay", Data: "workdir=/w,upperdir=/u", Lower: "/a:/b", UIDMap: "0:1:2", GIDMap: "0:1:2,2:9:1"},
		},
		{
			name: "mapped bind", in: Mount{Type: "bind", Source: "/s", Options: []string{"rbind", "uidmap=0:1:2", "gidmap=0:1:2"}},
			want: Plan{Source: "/s", Target: "/r", Type: "bind", Flags: unix.MS_BIND | unix.MS_REC, UIDMap: "0:1:2", GIDMap: "0:1:2"},
		},
		{name: "half a mapping", in: Mount{Type: "overlay", Options: []string{"lowerdir=/a", "uidmap=0:1:2"}}, err: "gidmap is missing"},
		{name: "no mapping", in: Mount{Type: "bind", Options: []string{"uidmap=0:1", "gidmap=0:1:2"}}, err: "CONTAINER:HOST:SIZE"},
		{name: "mapping beyond 32 bits", in: Mount{Type: "bind", Options: []string{"uidmap=0:1:4294967296", "gidmap=0:1:2"}}, err: "CONTAINER:HOST:SIZE"},
		{name: "mapped without lower", in: Mount{Type: "overlay", Options: []string{"uidmap=0:1:2", "gidmap=0:1:2"}}, err: "no lowerdir"},
		{name: "too long", in: Mount{Type: "ext4", Options: []string{strings.Repeat("x", 5000)}}, err: "5000 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := PlanMount(tc.in, "/r")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Fatalf("got %+v, %v\nwant %+v", got, err, tc.want)
			}
		})
	}
}

// An image of 100 layers does not fit into one page with absolute paths.
func TestManyLayersAreShortened(t *testing.T) {
	var lowers []string
	for i := range 100 {
		lowers = append(lowers, fmt.Sprintf("/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/%d/fs", i))
	}
	got, err := PlanMount(Mount{Type: "overlay", Options: []string{"upperdir=/u", "lowerdir=" + strings.Join(lowers, ":")}}, "/r")
	if err != nil {
		t.Fatal(err)
	}
	if got.Dir != "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots" || !strings.HasPrefix(got.Data, "upperdir=/u,lowerdir=0/fs:1/fs:") {
		t.Errorf("got %+v", got)
	}
}
