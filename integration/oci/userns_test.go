package oci

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestJoinedUserNamespace: a container in the user namespace of another one, as in a pod whose namespaces the engine has
// made, with namespaces of its own for the rest: these have to belong to the user namespace that is joined, or the
// container may not even make its mounts. Then it lives as every other: exec, kill, an exit status.
func TestJoinedUserNamespace(t *testing.T) {
	mapping := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 0, Size: 70000}}
	inUserNS := func(path string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Linux.UIDMappings, s.Linux.GIDMappings = mapping, mapping
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
			// A cgroup file system belongs to the namespace that mounts it, and is not what is tested here.
			s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Type == "cgroup" })
			s.Process.Args = []string{"sleep", "1000"}
		}
	}
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := plain(t, p)
		first := d.Up(t, inUserNS(""))
		second := d.Up(t, inUserNS(fmt.Sprintf("/proc/%d/ns/user", d.State(t, first.ID).Pid)))
		for _, c := range []string{first.ID, second.ID} {
			d.Must(t, "exec", c, "sh", "-c", "test $(cat /proc/self/uid_map | tr -s ' ' | cut -d' ' -f4) = 70000 && test -d /proc/1 && test \"$(cat /proc/1/comm)\" = sleep")
		}
		r := d.Do(t, "exec", second.ID, "sh", "-c", "readlink /proc/1/ns/user >/tmp/ns; hostname; id -u; mount -t tmpfs x /tmp 2>&1; true")
		// What belongs to the namespace above can't be joined from there: an error, and no wait for a child that has ended.
		third := d.RunSpec(t, func(s *specs.Spec) {
			inUserNS(fmt.Sprintf("/proc/%d/ns/user", d.State(t, first.ID).Pid))(s)
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/proc/1/ns/net"})
			s.Process.Args = []string{"true"}
		})
		r.Stdout += fmt.Sprintln("joined what is above:", third.Exit == 0)
		d.Must(t, "kill", second.ID, "KILL")
		r.Stdout = strings.ReplaceAll(r.Stdout, second.ID, "ID")
		return r
	}, harness.All(harness.Same, harness.Exits(0)))
}
