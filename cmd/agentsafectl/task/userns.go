package task

import (
	"slices"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// MapOwn gives the container a user namespace in which the user has its own ids, and there is nobody else. On this
// side, in the user's namespace, the user is 0.
func (p *Plan) MapOwn(u User) {
	p.mapIDs([]specs.LinuxIDMapping{{ContainerID: u.UID, Size: 1}}, []specs.LinuxIDMapping{{ContainerID: u.GID, Size: 1}})
}

// MapAll gives the container a user namespace with all ids that this one has, under the same numbers.
func (p *Plan) MapAll(uids, gids []syscall.SysProcIDMap) {
	same := func(in []syscall.SysProcIDMap) (out []specs.LinuxIDMapping) {
		for _, l := range in {
			id := uint32(l.ContainerID)                                                                //nolint:gosec // ids are 32 bits
			out = append(out, specs.LinuxIDMapping{ContainerID: id, HostID: id, Size: uint32(l.Size)}) //nolint:gosec // likewise
		}
		return out
	}
	p.mapIDs(same(uids), same(gids))
}

func (p *Plan) mapIDs(uids, gids []specs.LinuxIDMapping) {
	s := p.Spec
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	s.Linux.UIDMappings, s.Linux.GIDMappings = uids, gids
	const tty = 5
	if slices.ContainsFunc(gids, func(m specs.LinuxIDMapping) bool { return m.ContainerID <= tty && tty-m.ContainerID < m.Size }) {
		return
	}
	for i := range s.Mounts {
		if s.Mounts[i].Type == "devpts" {
			s.Mounts[i].Options = slices.DeleteFunc(slices.Clone(s.Mounts[i].Options), func(o string) bool { return strings.HasPrefix(o, "gid=") })
		}
	}
}
