package shim

import (
	"os"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentsafe/agentsafe/shim/wire"
)

// message is a pod configuration on the wire; pid is the mode of its processes.
func message(pid uint64, linux wire.Builder) wire.Builder {
	dns := wire.Builder(nil).String(1, "192.0.2.1").String(1, "192.0.2.2").String(2, "a.test").String(2, "b.test").String(3, "ndots:5")
	linux = linux.Bytes(2, wire.Builder(nil).Bytes(1, wire.Builder(nil).Number(2, pid)))
	return wire.Builder(nil).String(2, "name").Bytes(4, dns).Bytes(8, linux)
}

func podAny(b wire.Builder) *anypb.Any {
	return &anypb.Any{TypeUrl: "runtime.v1.PodSandboxConfig", Value: b}
}

func TestParsePod(t *testing.T) {
	const container = 1
	sysctl := wire.Builder(nil).String(1, "kernel.shmmax").String(2, "7")
	p, err := parsePod(podAny(message(container, wire.Builder(nil).String(1, "/pods/one").Bytes(3, sysctl))))
	if err != nil {
		t.Fatal(err)
	}
	if p.hostname != "name" || p.cgroupParent != "/pods/one" || p.sysctls["kernel.shmmax"] != "7" || p.pid != container {
		t.Errorf("got %+v", p)
	}
	if got, want := p.resolver(), "search a.test b.test\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions ndots:5\n"; got != want {
		t.Errorf("resolver %q, want %q", got, want)
	}
	files, err := p.files()
	if err != nil || string(files["hostname"]) != "name\n" || len(files["hosts"]) == 0 {
		t.Errorf("files %q, %v", files, err)
	}
}

func TestParsePodRefuses(t *testing.T) {
	userns := wire.Builder(nil).Bytes(2, wire.Builder(nil).Bytes(1, wire.Builder(nil).Number(2, 1).Bytes(5, wire.Builder(nil).Bytes(2, wire.Builder(nil).Number(3, 9)))))
	for name, tc := range map[string]struct {
		in   *anypb.Any
		want string
	}{
		"another type":     {&anypb.Any{TypeUrl: "x.Y", Value: []byte{8, 1}}, "x.Y"},
		"shared processes": {podAny(message(modePod, nil)), "podsandbox"},
		"user namespace":   {podAny(wire.Builder(nil).Bytes(8, userns)), "user namespaces"},
		"two lines":        {podAny(message(1, nil).String(2, "a\nnameserver 6.6.6.6")), "line"},
		"damaged":          {podAny(wire.Builder{8<<3 | 2, 9, 1}), "pod configuration"},
		"damaged inside":   {podAny(wire.Builder(nil).Bytes(8, wire.Builder{0xff})), "pod configuration"},
	} {
		_, err := parsePod(tc.in)
		if err == nil || !strings.Contains(err.Error(), tc.want) || status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v, want InvalidArgument with %q", name, err, tc.want)
		}
	}
}

func FuzzParsePod(f *testing.F) {
	f.Add([]byte(message(1, wire.Builder(nil).String(1, "/p"))))
	options := wire.Builder(nil)
	for kind := range protowire.Number(6) {
		options = options.Number(kind+1, uint64(kind))
	}
	ids := wire.Builder(nil).Number(1, 0).Number(2, 1<<32).Number(3, 1<<63)
	userns := wire.Builder(nil).Number(1, 3).Bytes(2, ids).Bytes(3, ids)
	f.Add([]byte(message(2, wire.Builder(nil).Bytes(2, wire.Builder(nil).Bytes(1, options.Bytes(5, userns))))))
	f.Add([]byte(message(1, wire.Builder(nil).Bytes(3, wire.Builder(nil).String(1, "kernel.core_pattern").String(2, "|/x")).Bytes(3, wire.Builder(nil)))))
	f.Add([]byte(message(1, wire.Builder(nil).String(1, "../../system.slice:x:y"))))
	f.Add([]byte(wire.Builder(nil).String(2, "a\nb").Bytes(4, wire.Builder(nil).String(1, "::1%x").String(2, strings.Repeat("a.", 200)).String(3, "\x00"))))
	f.Add([]byte(wire.Builder(nil).Bytes(8, wire.Builder{0xa, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})))
	f.Add([]byte(wire.Builder{0x12, 0x80, 0x80, 0x80, 0x80, 0x10, 0x41}))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parsePod(podAny(data))
		if err != nil || len(data) == 0 {
			return
		}
		if s := p.spec("id", "ns"); s.Linux.CgroupsPath == "" || strings.Contains(p.hostname, "\n") {
			t.Errorf("got %+v", s)
		}
	})
}

func TestPodSpec(t *testing.T) {
	has := func(s *specs.Spec, kind specs.LinuxNamespaceType) bool {
		return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	}
	s := (&podConfig{hostname: "h", pid: 1, netns: "/run/netns/x", cgroupParent: "/a/b"}).spec("id", "k8s.io")
	if !has(s, specs.IPCNamespace) || !has(s, specs.UTSNamespace) || !has(s, specs.NetworkNamespace) || s.Hostname != "h" || s.Linux.CgroupsPath != "/a/b/id" {
		t.Errorf("got %+v %+v", s, s.Linux)
	}
	// The host's namespaces are the host's: it is the profile that refuses them.
	s = (&podConfig{hostname: "h", pid: modeNode, ipc: modeNode, network: modeNode}).spec("id", "k8s.io")
	if has(s, specs.IPCNamespace) || has(s, specs.UTSNamespace) || has(s, specs.NetworkNamespace) || has(s, specs.PIDNamespace) || s.Hostname != "" {
		t.Errorf("got %+v", s.Linux.Namespaces)
	}
	if s.Linux.CgroupsPath != "/k8s.io/id" {
		t.Errorf("cgroup %s", s.Linux.CgroupsPath)
	}
	if got := (&podConfig{cgroupParent: "/kubepods.slice/kubepods-a.slice"}).cgroupsPath("id", "ns"); got != "kubepods-a.slice:cri-containerd:id" {
		t.Errorf("for systemd: %s", got)
	}
}

func TestEquip(t *testing.T) {
	b := &sandbox{id: "pod", bundle: "/b", pod: &podConfig{}}
	destinations := func(s *specs.Spec) string {
		var out []string
		for _, m := range s.Mounts {
			out = append(out, m.Destination+"="+m.Source+":"+m.Options[len(m.Options)-1])
		}
		return strings.Join(out, " ")
	}
	spec := &specs.Spec{
		Annotations: map[string]string{"io.kubernetes.cri.sandbox-id": "pod"}, Root: &specs.Root{Readonly: true},
		Mounts: []specs.Mount{
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"size=1"}},
			{Destination: "/etc/hosts", Type: "bind", Source: "/mine", Options: []string{"rw"}},
		},
	}
	b.equip(spec)
	want := "/etc/hosts=/mine:rw /etc/hostname=/b/pod/hostname:ro /etc/resolv.conf=/b/pod/resolv.conf:ro /dev/shm=/b/pod/shm:rw"
	if got := destinations(spec); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	foreign := &specs.Spec{Annotations: map[string]string{"io.kubernetes.cri.sandbox-id": "another"}}
	if b.equip(foreign); len(foreign.Mounts) != 0 {
		t.Errorf("a container of another pod gets %s", destinations(foreign))
	}
	host := &specs.Spec{Annotations: spec.Annotations}
	b.pod.ipc = modeNode
	if b.equip(host); strings.Contains(destinations(host), "shm") {
		t.Errorf("with the host's memory: %s", destinations(host))
	}
}

// A sandbox whose files can't be made leaves nothing mounted, and the shim can end.
func TestReleaseWithoutFiles(t *testing.T) {
	dir := t.TempDir()
	if err := ReleaseSandbox(dir); err != nil {
		t.Errorf("a bundle of something else: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}
