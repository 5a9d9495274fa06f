package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// busyboxImage writes a docker-save archive of the host's static busybox.
func busyboxImage(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("busybox-static is needed: %v", err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	add := func(h tar.Header, data string) {
		t.Helper()
		h.Size = int64(len(data))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, string(program))
	for _, applet := range []string{"sh", "cat", "echo", "env", "id", "ls", "pwd", "sleep", "touch", "true"} {
		add(tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, "")
	}
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, "root:x:0:0::/root:/bin/sh\napp:x:1234:1235::/srv/app:/bin/sh\n")
	add(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, "root:x:0:\napp:x:1235:\nextra:x:77:app\n")
	add(tar.Header{Name: "srv/app/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 1234, Gid: 1235}, "")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	diff := sha256.Sum256(layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{
			"User": "app", "WorkingDir": "/srv/app", "Env": []string{"PATH=/bin", "FROM_IMAGE=1"},
			"Cmd": []string{"sh", "-c", "id; pwd; env; touch made; ls"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(diff[:])}},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := sha256.Sum256(config)
	name := hex.EncodeToString(id[:]) + ".json"
	manifest, err := json.Marshal([]map[string]any{{"Config": name, "RepoTags": []string{"busybox:test"}, "Layers": []string{"l/layer.tar"}}})
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w = tar.NewWriter(&archive)
	add(tar.Header{Name: "l/layer.tar", Typeflag: tar.TypeReg, Mode: 0o644}, layer.String())
	add(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, string(config))
	add(tar.Header{Name: "manifest.json", Typeflag: tar.TypeReg, Mode: 0o644}, string(manifest))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(out, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRunImage(t *testing.T) {
	b := newBench(t)
	image := busyboxImage(t)
	out, errOut, status := b.run("", "--image", image)
	for _, want := range []string{"uid=1234(app) gid=1235(app) groups=77(extra)", "\n/srv/app\n", "FROM_IMAGE=1\n", "HOME=/srv/app\n", "\nmade\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q (status %d, %s)", want, out, status, errOut)
		}
	}
	// What the first run made is gone; the workspace is what stays.
	out, errOut, status = b.run("", "--image", image, "--user", "root", "--workspace", b.workspace, "--",
		"sh", "-c", "pwd; ls /srv/app; touch kept /gone; cat /etc/hosts; id -u")
	if status != 0 || !strings.HasPrefix(out, b.workspace+"\n127.0.0.1\tlocalhost\n") || !strings.HasSuffix(out, "\n0\n") {
		t.Errorf("status %d, output %q, %s", status, out, errOut)
	}
	if _, err := os.Stat(filepath.Join(b.workspace, "kept")); err != nil {
		t.Error(err)
	}
	if _, errOut, status := b.run("", "--image", image, "--user", "nobody-there", "--", "true"); status != exitOwn || !strings.Contains(errOut, "no such account") {
		t.Errorf("status %d, %s", status, errOut)
	}
	if _, _, status := b.run("", "--image", image, "--", "no-such-command"); status != exitNoCommand {
		t.Errorf("status %d", status)
	}
}

func TestRunRootfs(t *testing.T) {
	b := newBench(t)
	root := filepath.Join(b.dir, "rootfs")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("busybox-static is needed: %v", err)
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	out, errOut, status := b.run("", "--rootfs", root, "--", "busybox", "sh", "-c", "echo x >/made && busybox cat /made /etc/hostname")
	if status != 0 || out != "x\nagentsafe\n" {
		t.Errorf("status %d, output %q, %s", status, out, errOut)
	}
	left, err := os.ReadDir(root)
	if err != nil || len(left) != 1 {
		t.Errorf("the root file system was changed: %v, %v", left, err)
	}
}
