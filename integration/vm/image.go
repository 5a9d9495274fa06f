package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// image is what the machine boots from.
type image struct {
	kernel, initrd, disk string
}

const packages = "systemd,systemd-sysv,dbus,linux-image-cloud-amd64,busybox-static,runc,crun,docker.io,containerd,apparmor,iptables,nftables,iproute2,procps,criu"

// drivers are the modules that it takes to see a disk and mount it.
func drivers() []string { return []string{"virtio_pci", "virtio_blk", "ext4"} }

// initScript is the initramfs's first process: it loads the modules in the order of their dependencies and hands over.
const initScript = `#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc none /proc; $b mount -t sysfs none /sys; $b mount -t devtmpfs none /dev
for m in $($b cat /modules/order); do $b insmod /modules/$m; done
i=0; while [ ! -e /dev/vda ] && [ $i -lt 400 ]; do $b sleep 0.05; i=$((i+1)); done
$b mount -t ext4 -o rw /dev/vda /new || $b poweroff -f
$b umount /sys; $b umount /proc; $b mount --move /dev /new/dev
exec $b switch_root /new /lib/systemd/systemd
`

// service runs the tests when the machine is up, and turns it off.
const service = `[Unit]
Description=tests
After=basic.target dbus.service
[Service]
Type=oneshot
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
ExecStart=/bin/sh /t/run.sh
StandardOutput=file:/dev/ttyS1
StandardError=inherit
ExecStopPost=/bin/systemctl --force --force poweroff
Delegate=yes
[Install]
WantedBy=multi-user.target
`

// buildImage makes the root disk, the kernel and the initramfs, or finds them in the cache.
func buildImage(ctx context.Context) (image, error) {
	sources, release, err := harness.AptSources(ctx)
	if err != nil {
		return image{}, err
	}
	recipe := strings.Join(append([]string{"vm root, version 1", release, packages}, sources...), "\n")
	root, err := harness.Cached("vmroot", recipe, func(dir string) error {
		args := []string{
			"--mode=root", "--variant=minbase", "--include=" + packages, `--aptopt=APT::Install-Recommends "false"`,
			release, filepath.Join(dir, "root.tar"),
		}
		cmd := exec.CommandContext(ctx, "mmdebstrap", append(args, sources...)...)
		cmd.Env = append(os.Environ(), "TMPDIR=/var/tmp")
		return run(cmd)
	})
	if err != nil {
		return image{}, err
	}
	recipe = strings.Join([]string{"vm image, version 5", recipe, initScript, service, strings.Join(drivers(), " ")}, "\n")
	dir, err := harness.Cached("vm", recipe, func(dir string) error { return fillImage(ctx, dir, filepath.Join(root, "root.tar")) })
	return image{kernel: filepath.Join(dir, "vmlinuz"), initrd: filepath.Join(dir, "initrd"), disk: filepath.Join(dir, "root.ext4")}, err
}

func fillImage(ctx context.Context, dir, tar string) error {
	root := filepath.Join(dir, "root")
	defer os.RemoveAll(root)
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := run(exec.CommandContext(ctx, "tar", "--numeric-owner", "-C", root, "-xpf", tar)); err != nil {
		return err
	}
	kernels, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("find the kernel in %s/boot: %d files: %w", root, len(kernels), err)
	}
	if err := os.Rename(kernels[0], filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	if err := buildInitrd(ctx, dir, filepath.Join(root, "lib/modules", strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-"))); err != nil {
		return err
	}
	if err := prepareRoot(root); err != nil {
		return err
	}
	return run(exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-d", root, filepath.Join(dir, "root.ext4"), "2500M"))
}

// prepareRoot makes the machine run the tests and nothing that they don't need.
func prepareRoot(root string) error {
	etc := filepath.Join(root, "etc/systemd/system")
	wants := filepath.Join(etc, "multi-user.target.wants")
	if err := os.MkdirAll(wants, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(etc, "tests.service"), []byte(service), 0o644); err != nil {
		return err
	}
	if err := os.Symlink("../tests.service", filepath.Join(wants, "tests.service")); err != nil {
		return err
	}
	for _, unit := range []string{"docker.service", "docker.socket", "containerd.service", "serial-getty@ttyS0.service", "systemd-timesyncd.service", "apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer"} {
		link := filepath.Join(etc, unit)
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink("/dev/null", link); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "t"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "etc/fstab"), []byte("/dev/vdb /t ext4 rw 0 0\n"), 0o644)
}

// buildInitrd makes the initramfs from a static busybox and the modules of the kernel.
func buildInitrd(ctx context.Context, dir, modules string) error {
	tree := filepath.Join(dir, "initrd.d")
	defer os.RemoveAll(tree)
	for _, d := range []string{"bin", "dev", "modules", "new", "proc", "sys"} {
		if err := os.MkdirAll(filepath.Join(tree, d), 0o755); err != nil {
			return err
		}
	}
	if err := copyFile("/bin/busybox", filepath.Join(tree, "bin/busybox"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tree, "init"), []byte(initScript), 0o755); err != nil {
		return err
	}
	order, err := moduleOrder(modules, drivers())
	if err != nil {
		return err
	}
	var names []string
	for _, m := range order {
		names = append(names, filepath.Base(m))
		if err := copyFile(filepath.Join(modules, m), filepath.Join(tree, "modules", filepath.Base(m)), 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(tree, "modules/order"), []byte(strings.Join(names, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	pack := exec.CommandContext(ctx, "/bin/busybox", "sh", "-c", "busybox find . | busybox cpio -o -H newc | gzip -1 >"+filepath.Join(dir, "initrd"))
	pack.Dir = tree
	return run(pack)
}

// moduleOrder returns the files of the modules and of what they depend on, in the order of loading; those that are built
// into the kernel need none. modules.dep lists each file's dependencies so that the last one has to be loaded first.
func moduleOrder(modules string, want []string) ([]string, error) {
	deps, err := moduleLines(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := moduleLines(filepath.Join(modules, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	var order []string
	for _, name := range want {
		chain, ok := deps[name]
		if _, is := builtin[name]; !ok && !is {
			return nil, fmt.Errorf("modules in %s: there is no %s", modules, name)
		}
		for _, m := range slices.Backward(chain) {
			if !slices.Contains(order, m) {
				order = append(order, m)
			}
		}
	}
	return order, nil
}

// moduleLines reads a list of module files, each with what it depends on, by the modules' names.
func moduleLines(name string) (map[string][]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string][]string{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		file, rest, _ := strings.Cut(s.Text(), ":")
		out[strings.TrimSuffix(filepath.Base(file), ".ko")] = append([]string{file}, strings.Fields(rest)...)
	}
	return out, s.Err()
}
