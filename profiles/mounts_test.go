package profiles

import (
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func planMount(p *Profile, m specs.Mount, src MountFacts, known ...PathFacts) ([]specs.Mount, []Note, error) {
	return p.planMounts([]specs.Mount{m}, HostFacts{Mounts: []MountFacts{src}, Paths: known}, Variables{}, false)
}

func bind(source string) specs.Mount {
	return specs.Mount{Destination: "/mnt/x", Type: "bind", Source: source, Options: []string{"rbind"}}
}

// The real path decides, and with it every directory above a dangerous one.
func TestPlanMounts_HostPaths(t *testing.T) {
	for _, c := range []struct {
		path    string
		refused bool
	}{
		{"/", true},
		{"/etc", true},
		{"/etc/shadow", true},
		{"/etc/shadow-", true},
		{"/etc/cron.d", true},
		{"/etc/cron.d/job", true},
		{"/etc/ssh", true},
		{"/etc/ssh/ssh_host_ed25519_key", true},
		{"/etc/ssh/ssh_known_hosts", false},
		{"/etc/localtime", false},
		{"/etc/ssl/certs", false},
		{"/etcetera", false},
		{"/proc", true},
		{"/proc/1/root", true},
		{"/proc/sys/kernel", true},
		{"/process", false},
		{"/sys", true},
		{"/sys/fs/cgroup", true},
		{"/sys/kernel/debug", true},
		{"/dev", true},
		{"/dev/shm", true},
		{"/dev/bus/usb", true},
		{"/boot", true},
		{"/boot/efi", true},
		{"/run", true},
		{"/var/run", true},
		{"/run/lock", false},
		{"/run/docker.sock", true},
		{"/var/run/docker.sock", true},
		{"/run/docker", true},
		{"/run/docker/containerd/containerd.sock", true},
		{"/run/containerd", true},
		{"/run/containerd/containerd.sock", true},
		{"/run/containerd/containerd.sock.ttrpc", true},
		{"/run/containerd/io.containerd.grpc.v1.cri/sandboxes/id/shm", false},
		{"/run/podman/podman.sock", true},
		{"/run/crio/crio.sock", true},
		{"/run/user", true},
		{"/run/user/1000", true},
		{"/run/user/1000/podman/podman.sock", true},
		{"/run/user/1000/docker.sock", true},
		{"/run/user/1000/wayland-0", false},
		{"/run/dbus/system_bus_socket", true},
		{"/run/systemd", true},
		{"/run/systemd/private", true},
		{"/run/systemd/resolve/resolv.conf", false},
		{"/run/containers/storage/overlay-containers/id/userdata/hosts", false},
		{"/run/agentsafe", true},
		{"/run/agentsafe/id", true},
		{"/var", true},
		{"/var/lib", true},
		{"/var/lib/docker", true},
		{"/var/lib/docker/volumes", true},
		{"/var/lib/docker/volumes/v/_data", false},
		{"/var/lib/docker/containers/id/hosts", false},
		{"/var/lib/containerd", true},
		{"/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/id/resolv.conf", false},
		{"/var/lib/containers/storage", true},
		{"/var/lib/containers/storage/volumes/v/_data", false},
		{"/var/lib/kubelet", true},
		{"/var/lib/kubelet/pods", true},
		{"/var/lib/kubelet/pods/uid/etc-hosts", false},
		{"/var/lib/kubelet/pods/uid/volumes/kubernetes.io~secret/s", false},
		{"/var/lib/kubelet/pki/kubelet.key", true},
		{"/var/lib/kubelet/device-plugins/kubelet.sock", true},
		{"/home/dev/project", false},
		{"/root", false},
		{"/usr", false},
		{"/tmp", false},
		{"/lib/modules", false},
	} {
		_, _, err := planMount(agent(), bind("/link"), MountFacts{Path: c.path, Mode: unix.S_IFDIR, Dev: 1, Ino: 2})
		if (err != nil) != c.refused {
			t.Errorf("%s: refused %v, want %v", c.path, err, c.refused)
		}
		if err != nil {
			wantRefused(t, err, "from "+c.path+" (/link)", "host: {mounts: ["+c.path+"]}")
		}
	}
}

// A bind mount elsewhere on the host, or a chroot's proc, is the same file under another name.
func TestAttack_SecondNameOfHostDirectory(t *testing.T) {
	known := []PathFacts{
		{"/", 1, 2},
		{"/etc", 1, 70},
		{"/var", 1, 71},
		{"/run", 30, 1},
		{"/run/docker.sock", 30, 555},
		{"/proc", 21, 1},
		{"/sys", 22, 1},
		{"/dev", 6, 1},
	}
	for _, c := range []struct {
		name string
		src  MountFacts
		what string
	}{
		{"root", MountFacts{Path: "/mnt/all", Mode: unix.S_IFDIR, Dev: 1, Ino: 2}, "which is the host's /"},
		{"etc", MountFacts{Path: "/srv/e", Mode: unix.S_IFDIR, Dev: 1, Ino: 70}, "which is the host's /etc"},
		{"above", MountFacts{Path: "/srv/v", Mode: unix.S_IFDIR, Dev: 1, Ino: 71}, "which is the host's /var"},
		{"hard link of a socket", MountFacts{Path: "/run/x/y", Mode: unix.S_IFSOCK, Dev: 30, Ino: 555}, "which is the host's /run/docker.sock"},
		{"file of a chroot's proc", MountFacts{Path: "/srv/chroot/proc/kcore", Mode: unix.S_IFREG, Dev: 21, Ino: 4026532}, "which is the host's /proc/..."},
		{"directory of a chroot's sys", MountFacts{Path: "/srv/chroot/sys/kernel", Mode: unix.S_IFDIR, Dev: 22, Ino: 9}, "which is the host's /sys/..."},
		{"socket by its name", MountFacts{Path: "/opt/engine/docker.sock", Mode: unix.S_IFSOCK, Dev: 9, Ino: 9}, "/opt/engine/docker.sock"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := planMount(agent(), bind(c.src.Path), c.src, known...)
			wantRefused(t, err, c.what, "host: {mounts: ["+c.src.Path+"]}")
		})
	}
	t.Run("socket by its destination", func(t *testing.T) {
		m := bind("/opt/engine/api")
		m.Destination = "/var/run/docker.sock"
		src := MountFacts{Path: "/opt/engine/api", Mode: unix.S_IFSOCK, Dev: 9, Ino: 9}
		_, _, err := planMount(agent(), m, src, known...)
		wantRefused(t, err, "/opt/engine/api", "host: {mounts: [/opt/engine/api]}")
	})
	if _, _, err := planMount(agent(), bind("/srv/work"), MountFacts{Path: "/srv/work", Mode: unix.S_IFDIR, Dev: 1, Ino: 99}, known...); err != nil {
		t.Errorf("a directory of its own: %v", err)
	}
	// A /dev that is a plain directory of the root file system says nothing about the rest of that.
	plain := []PathFacts{{"/", 1, 2}, {"/dev", 1, 50}}
	if _, _, err := planMount(agent(), bind("/srv/work"), MountFacts{Path: "/srv/work", Mode: unix.S_IFDIR, Dev: 1, Ino: 99}, plain...); err != nil {
		t.Errorf("with a plain /dev: %v", err)
	}
}

func TestPlanMounts_Nodes(t *testing.T) {
	for _, c := range []struct {
		name    string
		mode    uint32
		rdev    uint64
		refused string
	}{
		{"null", unix.S_IFCHR, unix.Mkdev(1, 3), ""},
		{"terminal", unix.S_IFCHR, unix.Mkdev(136, 4), ""},
		{"mem", unix.S_IFCHR, unix.Mkdev(1, 1), "c 1:1 rw"},
		{"port", unix.S_IFCHR, unix.Mkdev(1, 4), "c 1:4 rw"},
		{"kmsg", unix.S_IFCHR, unix.Mkdev(1, 11), "c 1:11 rw"},
		{"kvm", unix.S_IFCHR, unix.Mkdev(10, 232), "c 10:232 rw"},
		{"disk", unix.S_IFBLK, unix.Mkdev(8, 0), "b 8:0 rw"},
		{"disk with the number of null", unix.S_IFBLK, unix.Mkdev(1, 3), "b 1:3 rw"},
		{"socket", unix.S_IFSOCK, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := planMount(agent(), bind("/srv/node"), MountFacts{Path: "/srv/node", Mode: c.mode, Rdev: c.rdev, Dev: 1, Ino: 3})
			if c.refused == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantRefused(t, err, c.refused, `host: {devices: ["`+c.refused+`"]}`)
			granted := agent()
			d, _ := ParseDevice(c.refused)
			granted.Host.Devices = []Device{d}
			if _, _, err := planMount(granted, bind("/srv/node"), MountFacts{Path: "/srv/node", Mode: c.mode, Rdev: c.rdev, Dev: 1, Ino: 3}); err != nil {
				t.Errorf("granted: %v", err)
			}
		})
	}
}

func TestPlanMounts_Granted(t *testing.T) {
	p := agent()
	p.Host.Mounts = []string{"/var/run/docker.sock", "/sys/fs/cgroup"}
	for path, want := range map[string]bool{
		"/run/docker.sock": true, "/sys/fs/cgroup": true, "/sys/fs/cgroup/systemd": true, "/sys/fs": false, "/run": false,
	} {
		_, _, err := planMount(p, bind(path), MountFacts{Path: path, Mode: unix.S_IFDIR, Dev: 1, Ino: 2})
		if (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestPlanMounts_Filesystems(t *testing.T) {
	for _, c := range []struct {
		name    string
		mount   specs.Mount
		refused string
		options string
	}{
		{"tmpfs", specs.Mount{Destination: "/tmp", Type: "tmpfs"}, "", ""},
		{"proc", specs.Mount{Destination: "/proc/", Type: "proc"}, "", ""},
		{"tmpfs over proc", specs.Mount{Destination: "/proc", Type: "tmpfs"}, "(/proc) as destination", ""},
		{"tmpfs in proc", specs.Mount{Destination: "/proc/sys", Type: "tmpfs"}, "(/proc/sys) as destination", ""},
		{"proc elsewhere", specs.Mount{Destination: "/mnt", Type: "proc"}, "mounts[0] (/mnt) type proc", ""},
		{"sysfs", specs.Mount{Destination: "/sys", Type: "sysfs", Options: []string{"nosuid", "ro"}}, "", "nosuid,ro"},
		{"sysfs made read-only", specs.Mount{Destination: "/sys", Type: "sysfs", Options: []string{"rw", "nosuid"}}, "", "nosuid,ro"},
		{"sysfs, last word counts", specs.Mount{Destination: "/sys", Type: "sysfs", Options: []string{"ro", "rw"}}, "", "ro,ro"},
		{"sysfs elsewhere", specs.Mount{Destination: "/sys2", Type: "sysfs"}, "type sysfs", ""},
		{"cgroup made read-only", specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup"}, "", "ro"},
		{"disk", specs.Mount{Destination: "/mnt", Type: "ext4", Source: "/dev/sda1"}, `type "ext4"`, ""},
		{"overlay", specs.Mount{Destination: "/mnt", Type: "overlay", Options: []string{"lowerdir=/"}}, `type "overlay"`, ""},
		{"debugfs", specs.Mount{Destination: "/mnt", Type: "debugfs"}, `type "debugfs"`, ""},
		{"nothing", specs.Mount{Destination: "/mnt"}, `type ""`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, notes, err := planMount(agent(), c.mount, MountFacts{})
			if c.refused != "" {
				wantRefused(t, err, c.refused, `the profile "none"`)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(out[0].Options, ",")
			if got != c.options {
				t.Errorf("options %q, want %q", got, c.options)
			}
			if changed := got != strings.Join(c.mount.Options, ","); changed != (len(notes) == 1) {
				t.Errorf("changed %v, notes %v", changed, notes)
			}
		})
	}
}

// A bind over the kernel's directories replaces what is masked (CVE-2019-16884), whatever its source.
func TestAttack_CVE_2019_16884_BindOverProc(t *testing.T) {
	src := MountFacts{Path: "/home/dev/x", Mode: unix.S_IFDIR, Dev: 1, Ino: 3}
	for destination, refused := range map[string]bool{
		"/proc": true, "/proc/": true, "/x/../proc": true, "proc": true, "/proc/sys/kernel": true, "/proc/1": true, "/sys": true,
		"/proc/meminfo": false, "/proc/uptime": false, "/sys/fs/cgroup": false, "/processes": false,
	} {
		m := bind("/home/dev/x")
		m.Destination = destination
		if _, _, err := planMount(agent(), m, src); (err != nil) != refused {
			t.Errorf("%s: %v", destination, err)
		}
	}
}

// Without facts about a source there is no judgement, and without judgement no mount.
func TestPlanMounts_MissingFacts(t *testing.T) {
	if _, _, err := planMount(agent(), bind("/home"), MountFacts{}); err == nil {
		t.Error("no facts about the source")
	}
	if _, _, err := agent().planMounts([]specs.Mount{bind("/home")}, HostFacts{}, Variables{}, false); err == nil {
		t.Error("no facts about any mount")
	}
}

func TestHostPaths(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range HostPaths() {
		if seen[p] || strings.Contains(p, "*") || p[0] != '/' {
			t.Errorf("%q", p)
		}
		seen[p] = true
		if judgeHostPath(p) == nil {
			t.Errorf("%s is asked for, but no rule refuses it", p)
		}
	}
	for _, want := range []string{"/", "/etc", "/run", "/var", "/var/lib", "/run/docker.sock", "/proc", "/sys", "/dev"} {
		if !seen[want] {
			t.Errorf("%s is missing", want)
		}
	}
}

// What a task writes to resolv.conf must name no server to the host: read again when the gateway is started again, or by
// the next container of the pod, it would open port 53 of whatever the task likes, or answer for the names that are
// allowed.
func TestAttack_OwnNameServer(t *testing.T) {
	m := bind("/srv/resolv.conf")
	m.Destination = "/etc/../etc/resolv.conf"
	m.Options = []string{"rbind", "rprivate", "rw"}
	src := []MountFacts{{Path: "/srv/resolv.conf", Mode: unix.S_IFREG, Dev: 1, Ino: 3}}
	gateway := agent()
	gateway.Network.Mode = NetworkGateway
	for _, c := range []struct {
		name         string
		p            *Profile
		shared, want bool
	}{
		{"engine's network, a file of its own", agent(), false, false},
		{"gateway", gateway, false, true},
		{"pod", agent(), true, true},
	} {
		out, notes, err := c.p.planMounts([]specs.Mount{m}, HostFacts{Mounts: src}, Variables{}, c.shared)
		if err != nil || isReadonly(out[0].Options) != c.want || len(notes) > 0 != c.want {
			t.Errorf("%s: %v %v, %v, want read-only %t", c.name, out, notes, err, c.want)
		}
	}
}

// An engine's process listens on it: whatever it is called, and wherever it is mounted.
func TestAttack_EngineBehindUnknownName(t *testing.T) {
	for mode, path := range map[uint32]string{unix.S_IFSOCK: "/srv/api", unix.S_IFDIR: "/srv"} {
		src := MountFacts{Path: path, Mode: mode, Dev: 9, Ino: 9, Engine: "dockerd (pid 7), which listens on /srv/api"}
		_, _, err := planMount(agent(), bind(path), src)
		wantRefused(t, err, "dockerd (pid 7), which listens on /srv/api", "host: {mounts: ["+path+"]}")
		granted := agent()
		granted.Host.Mounts = []string{path}
		if _, _, err := planMount(granted, bind(path), src); err != nil {
			t.Errorf("granted: %v", err)
		}
	}
}

// An overlay shows its lower directories as a bind mount would, and what is written to it lands in the upper one.
func TestAttack_OverlayOfHostDirectory(t *testing.T) {
	dir := func(path string) MountFacts {
		return MountFacts{Path: path, Mode: unix.S_IFDIR | 0o755, Dev: 1, Ino: 9}
	}
	for name, c := range map[string]struct {
		below       []MountFacts
		destination string
		refused     string
	}{
		"a folder":              {[]MountFacts{dir("/home/dev/x"), dir("/var/lib/containers/storage/overlay-containers/id/u"), dir("/var/tmp/w")}, "/v", ""},
		"the host's root":       {[]MountFacts{dir("/")}, "/v", "from /"},
		"secrets":               {[]MountFacts{dir("/home/dev"), dir("/etc/ssh")}, "/v", "from /etc/ssh"},
		"written to the host's": {[]MountFacts{dir("/home/dev"), dir("/etc/cron.d"), dir("/var/tmp/w")}, "/v", "from /etc/cron.d"},
		"over proc":             {[]MountFacts{dir("/home/dev")}, "/proc", "(/proc) as destination"},
		"of nothing known":      {nil, "/v", `type "overlay"`},
	} {
		m := specs.Mount{Destination: c.destination, Type: "overlay", Source: "overlay"}
		src := MountFacts{Below: c.below}
		_, _, err := planMount(agent(), m, src)
		if c.refused == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		} else if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v, want %q", name, err, c.refused)
			}
		}
	}
}

// What is mounted below a source comes along with it.
func TestPlanMounts_Mounted(t *testing.T) {
	for _, c := range []struct {
		m    MountedFacts
		what string
	}{
		{MountedFacts{At: "/srv/jail/proc", Type: "proc"}, "with the proc that is mounted on /srv/jail/proc"},
		{MountedFacts{At: "/srv/jail/dev/pts", Type: "devpts"}, "with the devpts that is mounted on /srv/jail/dev/pts"},
		{MountedFacts{At: "/srv/jail/e", Type: "ext4", Names: []string{"/opt/e", "/etc"}}, "with /srv/jail/e, which is the host's /etc"},
		{MountedFacts{At: "/srv/jail/run", Type: "tmpfs", Names: []string{"/run"}}, "with /srv/jail/run, which is the host's /run"},
		{MountedFacts{At: "/srv/jail/tmp", Type: "tmpfs"}, ""},
		{MountedFacts{At: "/srv/jail/home", Type: "ext4", Names: []string{"/home"}}, ""},
	} {
		src := MountFacts{Path: "/srv/jail", Mode: unix.S_IFDIR, Dev: 1, Ino: 2, Mounted: []MountedFacts{c.m}}
		granted := agent()
		granted.Host.Mounts = []string{c.m.At}
		if _, _, err := planMount(granted, bind("/srv/jail"), src); err != nil {
			t.Errorf("%+v, granted: %v", c.m, err)
		}
		_, _, err := planMount(agent(), bind("/srv/jail"), src)
		if c.what == "" {
			if err != nil {
				t.Errorf("%+v: %v", c.m, err)
			}
			continue
		}
		wantRefused(t, err, c.what, "host: {mounts: ["+c.m.At+"]}")
	}
}

// The root file system is judged as what is bound is, but for engines' own places.
func TestCheckRoot(t *testing.T) {
	known := []PathFacts{{"/", 1, 2}, {"/etc", 1, 70}, {"/proc", 21, 1}, {"/dev", 6, 1}}
	for _, c := range []struct {
		root MountFacts
		what string
	}{
		{MountFacts{Path: "/", Dev: 1, Ino: 2}, "root.path /"},
		{MountFacts{Path: "/srv/all", Dev: 1, Ino: 2}, "which is the host's /"},
		{MountFacts{Path: "/run", Dev: 9}, "root.path /run"},
		{MountFacts{Path: "/run/docker", Dev: 9}, "root.path /run/docker"},
		{MountFacts{Path: "/var/lib/docker", Dev: 9}, "root.path /var/lib/docker"},
		{MountFacts{Path: "/srv/e", Dev: 1, Ino: 70}, "which is the host's /etc"},
		{MountFacts{Path: "/proc/sys", Dev: 21, Ino: 5}, "root.path /proc/sys"},
		{MountFacts{Path: "/srv/jail/proc/sys", Dev: 21, Ino: 5}, "which is the host's /proc/..."},
		{MountFacts{Path: "/srv/jail", Dev: 1, Ino: 6, Engine: "dockerd (pid 7)"}, "with the socket of dockerd (pid 7)"},
		{MountFacts{Path: "/srv/jail", Dev: 1, Ino: 6, Mounted: []MountedFacts{{At: "/srv/jail/e", Type: "ext4", Names: []string{"/etc"}}}}, "with /srv/jail/e"},
		{MountFacts{Path: "/srv/jail", Dev: 1, Ino: 6, Mounted: []MountedFacts{{At: "/srv/jail/p", Type: "proc"}}}, "with the proc"},
		{MountFacts{Path: "/srv/jail", Dev: 1, Ino: 6, Mounted: []MountedFacts{{At: "/srv/jail/proc", Type: "proc"}}}, ""}, // the container's own covers it
		{MountFacts{Path: "/run/containerd/io.containerd.runtime.v2.task/default/id/rootfs", Dev: 3, Ino: 6}, ""},
		{MountFacts{Path: "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/id/rootfs", Dev: 3, Ino: 6}, ""},
		{MountFacts{Path: "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/id/rootfs", Dev: 3, Ino: 6}, ""},
		{MountFacts{Path: "/var/lib/docker/rootfs/overlayfs/id", Dev: 3, Ino: 6}, ""},
		{MountFacts{Path: "/var/lib/docker/vfs/dir/id", Dev: 1, Ino: 6}, ""},
		{MountFacts{Path: "/var/lib/rancher/k3s/agent/x/rootfs", Dev: 3, Ino: 6}, ""},
		{MountFacts{Path: "/var/lib/containers/storage/overlay/id/merged", Dev: 3, Ino: 6}, ""},
		{MountFacts{Path: "/dev/shm/rootfs", Dev: 8, Ino: 6}, ""},
		{MountFacts{Path: "/srv/jail", Dev: 1, Ino: 6}, ""},
	} {
		spec := loadSpec(t, "docker")
		host := hostOf(spec)
		host.Root, host.Paths = c.root, known
		_, err := PlanContainer(spec, agent(), host)
		if c.what == "" {
			if err != nil {
				t.Errorf("%+v: %v", c.root, err)
			}
			continue
		}
		wantRefused(t, err, c.what, "host: {mounts: [")
		if _, err := PlanContainer(spec, builtin(t, NameNone), host); err != nil {
			t.Errorf("%+v under none: %v", c.root, err)
		}
	}
	spec := loadSpec(t, "docker")
	host := hostOf(spec)
	host.Root = MountFacts{}
	if _, err := PlanContainer(spec, agent(), host); err == nil {
		t.Error("accepted without facts")
	}
}
