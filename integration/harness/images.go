package harness

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Image is a root file system without a registry behind it.
type Image struct {
	// Rootfs is the unpacked tree; do not write to it. Empty for images that are only needed as a tar.
	Rootfs string
	// Tar is the same as a plain tar, for `docker import`.
	Tar string
	// Archive is the same as docker-save writes it, for `ctr images import` and `podman load`. Empty for large images.
	Archive string
}

// Busybox is a small image: one static busybox with all its applets, integration/probe as /bin/probe, the users root,
// nobody (65534) and app (1000). In engines it is called [BusyboxName].
func Busybox() (Image, error) {
	const binary = "/bin/busybox"
	program, err := os.ReadFile(binary)
	if err != nil {
		return Image{}, fmt.Errorf("read busybox (package busybox-static): %w", err)
	}
	repo, err := RepoRoot()
	if err != nil {
		return Image{}, err
	}
	sum := sha256.Sum256(program)
	probe, err := hashSources(filepath.Join(repo, "integration", "probe"))
	if err != nil {
		return Image{}, err
	}
	recipe := "busybox image, version 1\n" + hex.EncodeToString(sum[:]) + probe
	dir, err := Cached("busybox", recipe, func(dir string) error {
		root := filepath.Join(dir, "rootfs")
		if err := buildBusyboxRoot(root, program); err != nil {
			return err
		}
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(root, "bin/probe"), "./integration/probe")
		build.Dir, build.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
		if err := run(build); err != nil {
			return err
		}
		if err := run(exec.Command("tar", "--numeric-owner", "-C", root, "-cf", filepath.Join(dir, "rootfs.tar"), ".")); err != nil {
			return err
		}
		return WriteDockerArchive(filepath.Join(dir, "image.tar"), filepath.Join(dir, "rootfs.tar"), BusyboxName, map[string]any{
			"Cmd": []string{"/bin/sh"}, "Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		})
	})
	return Image{Rootfs: filepath.Join(dir, "rootfs"), Tar: filepath.Join(dir, "rootfs.tar"), Archive: filepath.Join(dir, "image.tar")}, err
}

// hashSources hashes a directory's Go and assembly files: enough to know that a program would be built anew.
func hashSources(dir string) (string, error) {
	h := sha256.New()
	names, err := filepath.Glob(filepath.Join(dir, "*.[gs]*"))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", filepath.Base(name), len(data), data)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// BusyboxName is the full reference of the busybox image in every engine.
const BusyboxName = "docker.io/library/busybox:test"

func buildBusyboxRoot(root string, program []byte) error {
	for _, d := range []string{"bin", "dev", "etc", "home/app", "proc", "root", "sys", "usr/bin", "var/tmp", "run", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	for name, mode := range map[string]os.FileMode{"tmp": 0o777 | os.ModeSticky, "var/tmp": 0o777 | os.ModeSticky, "root": 0o700} {
		if err := os.Chmod(filepath.Join(root, name), mode); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group":  "root:x:0:\nstaff:x:50:app\napp:x:1000:\nnobody:x:65534:\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.Chown(filepath.Join(root, "home/app"), 1000, 1000); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), program, 0o755); err != nil {
		return err
	}
	applets, err := exec.Command(filepath.Join(root, "bin/busybox"), "--list").Output()
	if err != nil {
		return fmt.Errorf("list applets: %w", err)
	}
	for name := range strings.Lines(string(applets)) {
		if name = strings.TrimSpace(name); name == "busybox" || name == "" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// WriteDockerArchive writes to path an image with the single layer layerTar under name, in the format of docker save.
// settings is the part of its configuration that says how to run it: Cmd, Env, User, ...
func WriteDockerArchive(path, layerTar, name string, settings map[string]any) error {
	layer, err := os.ReadFile(layerTar)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	diff := hex.EncodeToString(sum[:])
	arch, err := exec.Command("dpkg", "--print-architecture").Output()
	if err != nil {
		return fmt.Errorf("ask dpkg for the architecture: %w", err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": strings.TrimSpace(string(arch)), "os": "linux", "created": "1970-01-01T00:00:00Z",
		"config":  settings,
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + diff}},
		"history": []map[string]string{{"created": "1970-01-01T00:00:00Z"}},
	})
	if err != nil {
		return err
	}
	sum = sha256.Sum256(config)
	configName := hex.EncodeToString(sum[:]) + ".json"
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": []string{name}, "Layers": []string{diff + "/layer.tar"}}})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, file := range []struct {
		name string
		data []byte
	}{{diff + "/layer.tar", layer}, {configName, config}, {"manifest.json", manifest}} {
		if err := w.WriteHeader(&tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.data))}); err != nil {
			return err
		}
		if _, err := io.Copy(w, bytes.NewReader(file.data)); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), f.Sync())
}

// Debian is an image of the machine's own Debian release with what agents work with: git, python3 and pytest, gcc,
// make, nodejs and npm. It has an npm cache for one package's tests in /opt/npm. Making it takes minutes and the
// network, once.
func Debian(ctx context.Context) (Image, error) {
	sources, release, err := AptSources(ctx)
	if err != nil {
		return Image{}, err
	}
	packages := "git,python3,python3-pytest,gcc,libc6-dev,make,nodejs,npm,procps"
	recipe := strings.Join(append([]string{"debian image, version 1", release, packages, npmScript}, sources...), "\n")
	dir, err := Cached("debian", recipe, func(dir string) error {
		args := []string{
			"--mode=root", "--variant=minbase", "--include=" + packages, `--aptopt=APT::Install-Recommends "false"`,
			"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
			// The machine's resolver and certificates, for npm; mmdebstrap puts the image's own resolver file back.
			`--customize-hook=cp -L /etc/ssl/certs/ca-certificates.crt "$1/tmp/ca.crt"`,
			`--customize-hook=cp -L /etc/resolv.conf /etc/hosts "$1/etc/"`,
			"--customize-hook=chroot \"$1\" sh -euc '" + npmScript + "'",
			`--customize-hook=rm -f "$1/tmp/ca.crt"; : >"$1/etc/resolv.conf"`,
			`--customize-hook=echo app:x:1000:1000:app:/home/app:/bin/sh >>"$1/etc/passwd"; install -d -o 1000 -g 1000 "$1/home/app"`,
			release, filepath.Join(dir, "rootfs.tar"),
		}
		cmd := exec.CommandContext(ctx, "mmdebstrap", append(args, sources...)...)
		cmd.Env = append(os.Environ(), "TMPDIR=/var/tmp")
		return run(cmd)
	})
	return Image{Tar: filepath.Join(dir, "rootfs.tar")}, err
}

// Stack is an image of the machine's own Debian release with a database (PostgreSQL), a cache (Redis), their clients for
// Python, Node, git and sudo, for which the user app needs no password. Making it takes minutes and the network, once.
func Stack(ctx context.Context) (Image, error) {
	sources, release, err := AptSources(ctx)
	if err != nil {
		return Image{}, err
	}
	packages := "postgresql,redis-server,python3-psycopg2,python3-redis,nodejs,git,sudo,procps"
	recipe := strings.Join(append([]string{"stack image, version 1", release, packages}, sources...), "\n")
	dir, err := Cached("stack", recipe, func(dir string) error {
		args := []string{
			"--mode=root", "--variant=minbase", "--include=" + packages, `--aptopt=APT::Install-Recommends "false"`,
			// PostgreSQL compiles large queries with LLVM, a third of the image. Excluding paths would start a program for each package.
			`--customize-hook=rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/usr/lib/*/libLLVM*`,
			`--customize-hook=echo app:x:1000:1000:app:/home/app:/bin/bash >>"$1/etc/passwd"; install -d -o 1000 -g 1000 "$1/home/app"`,
			`--customize-hook=echo app:x:1000: >>"$1/etc/group"; echo "app ALL=(root) NOPASSWD:ALL" >"$1/etc/sudoers.d/app"; chmod 440 "$1/etc/sudoers.d/app"`,
			`--customize-hook=echo "app:*:19000:0:99999:7:::" >>"$1/etc/shadow"`,
			`--customize-hook=: >"$1/etc/resolv.conf"`,
			release, filepath.Join(dir, "rootfs.tar"),
		}
		cmd := exec.CommandContext(ctx, "mmdebstrap", append(args, sources...)...)
		cmd.Env = append(os.Environ(), "TMPDIR=/var/tmp")
		return run(cmd)
	})
	return Image{Tar: filepath.Join(dir, "rootfs.tar")}, err
}

// npmScript fills an npm cache with a package that ships its own tests, and with what those need, so that its
// installation can be repeated without network. No single quotes: it stands in some.
const npmScript = `mkdir -p /opt/npm && cd /opt/npm && export NODE_EXTRA_CA_CERTS=/tmp/ca.crt HOME=/tmp/npmhome
npm pack --silent --cache /opt/npm/cache minimist@1.2.8 && tar -xzf minimist-1.2.8.tgz && rm minimist-1.2.8.tgz && mv package minimist
cd minimist && npm pkg delete scripts.prepublish scripts.prepack scripts.pretest scripts.posttest && npm pkg set scripts.test="tape test/*.js"
npm pkg set devDependencies="{\"tape\":\"5.6.3\"}" --json && npm install --silent --no-audit --no-fund --cache /opt/npm/cache
rm -rf node_modules /tmp/npmhome && chmod -R a+rX /opt/npm`

// AptSources reads the machine's own apt configuration: where its Debian comes from, as one-line sources, and which
// release it is. The repository names no mirror.
func AptSources(ctx context.Context) (sources []string, release string, err error) {
	osRelease, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return nil, "", err
	}
	for line := range strings.Lines(string(osRelease)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			release = strings.Trim(v, `"`)
		}
	}
	for try := range 2 {
		out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "deb $(SITE) $(RELEASE) $(COMPONENT)",
			"Created-By: Packages", "Origin: Debian").Output()
		if err != nil {
			return nil, "", fmt.Errorf("ask apt for its sources: %w", err)
		}
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) == 4 && strings.HasPrefix(f[2], release) && f[3] == "main" {
				sources = append(sources, strings.TrimSpace(line))
			}
		}
		if len(sources) > 0 {
			return sources, release, nil
		}
		if try == 0 { // no lists yet: apt knows the origin only from them
			if err := run(exec.CommandContext(ctx, "apt-get", "update")); err != nil {
				return nil, "", err
			}
		}
	}
	return nil, "", fmt.Errorf("apt has no Debian source for release %q", release)
}

// run runs cmd and returns its output as part of the error.
func run(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, tail(out))
	}
	return nil
}

// tail is as much of the end of b as a person reads.
func tail(b []byte) []byte {
	const n = 4000
	if len(b) > n {
		return b[len(b)-n:]
	}
	return b
}
