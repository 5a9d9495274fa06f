package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUserNamespace: a pod whose ids are mapped, with the layers of its image and a volume that keep the owners that the
// pod sees: containerd asks for both by id-mapped mounts. The files that it makes belong to its ids on the host.
func TestUserNamespace(t *testing.T) {
	const first = 70000
	mapping := []object{{"host_id": first, "container_id": 0, "length": 65536}}
	namespaces := object{"namespace_options": object{"userns_options": object{"mode": 0, "uids": mapping, "gids": mapping}}}
	for _, h := range []string{handler, noneByName} {
		t.Run(h, func(t *testing.T) {
			p := runPod(t, h, object{"linux": object{"cgroup_parent": box.CgroupParent(), "security_context": namespaces}})
			volume := filepath.Join(p.dir, "volume")
			if err := os.Mkdir(volume, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(volume, "given"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			id := p.run(t, imageBusybox, object{
				"linux":  object{"security_context": namespaces},
				"mounts": []object{{"container_path": "/volume", "host_path": volume, "uidMappings": mapping, "gidMappings": mapping}},
			}, "sleep", "1000")
			out := engine.must(t, "exec", id, "sh", "-c",
				"cat /proc/self/uid_map; stat -c %u:%g /bin/busybox; stat -c %u /volume/given; echo x >/made && stat -c %u /made; echo y >/volume/made && stat -c %u /volume/made")
			got := strings.Fields(out)
			want := strings.Fields("0 70000 65536 0:0 0 0 0")
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("inside: got %q, want %q", got, want)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(volume, "made"), &st); err != nil || st.Uid != 0 {
				t.Errorf("on the host the volume's file belongs to %d, %v", st.Uid, err)
			}
		})
	}
}
