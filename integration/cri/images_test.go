package cri

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// registry is where the box's registry listens; the network is the box's own.
const registry = "127.0.0.1:5077"

// Names of images as crictl says them. Whatever the host part, the registry above has them.
const (
	imageBusybox = "registry.k8s.io/e2e-test-images/busybox:1.29-2"
	imageNginx   = "registry.k8s.io/e2e-test-images/nginx:1.14-2"
	imagePause   = "registry.k8s.io/pause:3.9"
)

// imageConfigs are the images that critest asks for, by their path in the registry, with what differs between them.
// All have the same layer. Source: cri-tools v1.37.0, pkg/validate and images/.
func imageConfigs() map[string]map[string]any {
	const tools = "k8s-staging-cri-tools/"
	web := map[string]any{"Cmd": []string{"/usr/sbin/nginx"}}
	images := map[string]map[string]any{
		"pause:3.9":                                           {"Entrypoint": []string{"/pause"}},
		"e2e-test-images/busybox:1.29-2":                      {"Cmd": []string{"sh"}},
		"e2e-test-images/nginx:1.14-2":                        web,
		"e2e-test-images/httpd:2.4.39-4":                      {"Cmd": []string{"/usr/sbin/httpd"}},
		"e2e-test-images/nonewprivs:1.3":                      {"Cmd": []string{"/usr/bin/nnp"}},
		tools + "test-image-user-uid":                         {"User": "1002"},
		tools + "test-image-user-username":                    {"User": "www-data"},
		tools + "test-image-user-uid-group":                   {"User": "1003:users"},
		tools + "test-image-user-username-group":              {"User": "www-data:100"},
		tools + "test-image-predefined-group":                 {"User": "1000"},
		tools + "test-image-latest":                           {"Labels": map[string]string{"is": "latest"}},
		tools + "test-image-tag:test":                         {"Labels": map[string]string{"is": "tag"}},
		tools + "test-image-tag:all":                          {"Labels": map[string]string{"is": "all"}},
		tools + "hostnet-nginx-" + runtime.GOARCH + ":latest": {"Cmd": []string{"/usr/sbin/nginx"}, "Env": []string{"PORT=12003", imagePath}},
	}
	for n := range 3 {
		images[fmt.Sprintf("%stest-image-%d:latest", tools, n+1)] = map[string]any{"Labels": map[string]string{"is": fmt.Sprint(n)}}
		images[fmt.Sprintf("%stest-image-tags:%d", tools, n+1)] = map[string]any{"Labels": map[string]string{"is": "tags"}}
	}
	return images
}

const imagePath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// images makes the archives of all images, once, and returns their directory: FILE.tar for each, named by its path in
// the registry with "+" for "/".
func images() (string, error) {
	busybox, err := harness.Busybox()
	if err != nil {
		return "", err
	}
	repo, err := harness.RepoRoot()
	if err != nil {
		return "", err
	}
	source := filepath.Join(repo, "integration", "cri")
	h := sha256.New()
	for _, name := range []string{"images_test.go", "standin/main.go"} {
		data, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", err
		}
		h.Write(data)
	}
	recipe := "cri images, version 1\n" + busybox.Rootfs + hex.EncodeToString(h.Sum(nil))
	return harness.Cached("cri", recipe, func(dir string) error {
		layer := filepath.Join(dir, "layer.tar")
		if err := makeLayer(filepath.Join(dir, "rootfs"), layer, busybox.Rootfs, repo); err != nil {
			return err
		}
		configs := imageConfigs()
		for name, config := range configs {
			if config["Cmd"] == nil && config["Entrypoint"] == nil {
				config["Cmd"] = []string{"sh"}
			}
			if config["Env"] == nil {
				config["Env"] = []string{imagePath}
			}
			file := filepath.Join(dir, strings.ReplaceAll(name, "/", "+")+".tar")
			if err := harness.WriteDockerArchive(file, layer, registry+"/"+name, config); err != nil {
				return err
			}
		}
		return os.RemoveAll(filepath.Join(dir, "rootfs"))
	})
}

// makeLayer makes the root file system of all images: busybox's, with more users and the stand-ins.
func makeLayer(root, layer, busybox, repo string) error {
	script := fmt.Sprintf("set -e; cp -a %[1]s %[2]s; cd %[2]s; mkdir -p usr/sbin usr/bin var/run; "+
		"CGO_ENABLED=0 go build -C %[3]s -trimpath -ldflags '-s -w' -o %[2]s/usr/bin/standin ./integration/cri/standin; "+
		"ln -f usr/bin/standin pause; ln -f usr/bin/standin usr/sbin/nginx; ln -f usr/bin/standin usr/sbin/httpd; "+
		"cp usr/bin/standin usr/bin/nnp; chmod 4755 usr/bin/nnp; "+
		"rm -f bin/httpd; ln -f usr/bin/standin bin/ipcs; ln -f usr/bin/standin bin/pgrep", busybox, root, repo)
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("make root file system: %w\n%s", err, out)
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/:/bin/sh\ndefault-user:x:1000:1000::/:/bin/sh\n" +
			"u1002:x:1002:1002::/:/bin/sh\nu1003:x:1003:1003::/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group": "root:x:0:\nwww-data:x:33:\nusers:x:100:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\nnogroup:x:65534:\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	out, err := exec.Command("tar", "--numeric-owner", "-C", root, "-cf", layer, ".").CombinedOutput()
	if err != nil {
		return fmt.Errorf("pack layer: %w\n%s", err, out)
	}
	return nil
}

// push fills the registry of the box.
func push(crane, dir string) error {
	for name := range imageConfigs() {
		archive := filepath.Join(dir, strings.ReplaceAll(name, "/", "+")+".tar")
		if out, err := exec.Command(crane, "push", "--insecure", archive, registry+"/"+name).CombinedOutput(); err != nil {
			return fmt.Errorf("push %s: %w\n%s", name, err, out)
		}
	}
	return nil
}
