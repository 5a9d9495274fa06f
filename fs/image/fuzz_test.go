package image

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzSelect: the outer archive and its documents are hostile bytes. Whatever
// they are, reading them must end, within the limits, and must not panic.
func FuzzSelect(f *testing.F) {
	layer := tarOf(f, reg("hello", "hi"))
	f.Add(tarOf(f, dockerSave(f, v1.ImageConfig{Cmd: []string{"sh"}}, layer)...))
	f.Add(tarOf(f, ociLayout(f, v1.ImageConfig{User: "0"}, [][]byte{layer}, [][]byte{gzipOf(f, layer)})...))
	f.Add(tarOf(f, symlink("manifest.json", "b"), symlink("b", "manifest.json")))
	f.Add(tarOf(f, hardlink("manifest.json", "oci-layout"), reg("oci-layout", `{"imageLayoutVersion":"1.0.0"}`), reg("index.json", `{"manifests":[{"digest":"sha256:/../x","size":-1}]}`)))
	f.Add(tarOf(f, reg("manifest.json", `[{"Config":"../../etc/passwd","Layers":["/l","l","l"]}]`), reg("l", "")))
	f.Add(tarOf(f, reg("manifest.json", `[{"Config":"c","Layers":["l"]}]`), reg("c", `{"config":{"User":"\u0000","WorkingDir":"../..","Env":["=","A"]},"rootfs":{"diff_ids":["sha256:"]}}`), symlink("l", "c")))
	f.Add(append(tarOf(f, dir("blobs/sha256")), tarOf(f, reg("index.json", `{"schemaVersion":2,"manifests":null}`))...))
	f.Add(gzipOf(f, tarOf(f, reg("manifest.json", "[]"))))
	f.Fuzz(func(t *testing.T, data []byte) {
		lim := Limits{ArchiveEntries: 64, MetadataBytes: 1 << 16, Layers: 8}.withDefaults()
		r := bytes.NewReader(data)
		entries, err := index(r, lim)
		if err != nil {
			return
		}
		for name, e := range entries {
			if clean, err := cleanName(name); err != nil || clean != name {
				t.Errorf("index kept the name %q", name)
			}
			if e.link == "" && (e.offset < 0 || e.size < 0) {
				t.Errorf("index kept %+v", e)
			}
		}
		a := &Archive{data: r, entries: entries, lim: lim}
		img, err := a.Select("", here())
		if err != nil {
			return
		}
		if len(img.Layers) > lim.Layers || img.Config.WorkingDir == "" || img.Config.WorkingDir[0] != '/' {
			t.Errorf("image = %+v", img)
		}
	})
}

// FuzzLayer unpacks hostile layers beside a canary file, which must stay.
func FuzzLayer(f *testing.F) {
	needUnpack(f)
	f.Add(tarOf(f, dir("a"), reg("a/b", "c"), symlink("l", "a"), hardlink("h", "a/b")))
	f.Add(tarOf(f, reg("a/.wh.b", ""), reg("a/.wh..wh..opq", ""), reg("a/c", "d")))
	f.Add(tarOf(f, symlink("up", "../.."), reg("up/canary", "evil"), reg("up/.wh.canary", "")))
	f.Add(tarOf(f, xattr(reg("f", "x"), "user.a", "b")))
	f.Add(tarOf(f, hardlink("h", "../canary"), hardlink("i", "/etc/passwd"), reg("h", "evil")))
	f.Add(tarOf(f, symlink("a", "b"), symlink("b", "a"), reg("a/c", "x"), dir("a")))
	f.Add(tarOf(f, dir("a"), symlink("a/b", "/"), hardlink("a/b/canary", "a"), reg("a/b/.wh..wh..opq", "")))
	f.Add(tarOf(f, reg("d", "x"), dir("d"), reg("d/e", "y"), symlink("d", "."), reg("./d/./e", "z")))
	f.Add(tarOf(f, xattr(dir("o"), "trusted.overlay.redirect", "/canary"), xattr(dir("p"), "trusted.overlay.opaque", "y"), xattr(reg("q", ""), "security.capability", "\x01\x00\x00\x02")))
	f.Add(tarOf(f, file{tar.Header{Name: "sda", Typeflag: tar.TypeBlock, Mode: 0o666, Devmajor: 8}, ""}, file{tar.Header{Name: "null", Typeflag: tar.TypeChar, Mode: 0o666}, ""}, file{tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o7777}, ""}))
	f.Add(tarOf(f, file{tar.Header{Name: "big", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 1 << 20, Gid: -1 & 0xffff, Size: 3}, "set"}, reg("a\nb\x1b[2J", "name")))
	f.Add(gzipOf(f, tarOf(f, reg("in/a/gzip", "x"))))
	f.Fuzz(func(t *testing.T, data []byte) {
		base := t.TempDir()
		canary := filepath.Join(base, "canary")
		if err := os.WriteFile(canary, []byte("alive"), 0o600); err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(base, "store", "layer")
		if err := makeAll(target); err != nil {
			t.Fatal(err)
		}
		a := &Archive{data: bytes.NewReader(data), entries: map[string]entry{"l": {size: int64(len(data))}}}
		lim := Limits{LayerEntries: 200, LayerBytes: 1 << 20}.withDefaults()
		_, err := unpack(t.Context(), a, Layer{name: "l", DiffID: blobDigest(string(data))}, target, lim)
		if got, err := os.ReadFile(canary); err != nil || string(got) != "alive" {
			t.Fatalf("canary: %q, %v", got, err)
		}
		for dir, want := range map[string]int{base: 2, filepath.Join(base, "store"): 1} {
			if left, err := os.ReadDir(dir); err != nil || len(left) != want {
				t.Fatalf("written outside of the layer: %v, %v", left, err)
			}
		}
		if err == nil {
			wantOnlyKnownTypes(t, target)
		}
	})
}

// wantOnlyKnownTypes fails if a device other than a whiteout was made.
func wantOnlyKnownTypes(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode()&os.ModeDevice != 0 && !isWhiteout(t, p) {
			t.Errorf("device %q", p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzAccounts: account files of an image are hostile.
func FuzzAccounts(f *testing.F) {
	f.Add("app:staff", testPasswd, testGroup)
	f.Add("1000", "1000:x:0:0::/:", "")
	f.Fuzz(func(t *testing.T, text, passwd, group string) {
		u, err := resolveUser(text, []byte(passwd), []byte(group))
		if err != nil {
			return
		}
		if u.UID > maxID || u.GID > maxID || len(u.Groups) > 64 || u.Home == "" || u.Home[0] != '/' {
			t.Errorf("resolveUser(%q) = %+v", text, u)
		}
		if id, numeric, _ := parseID(text); numeric && u.UID != id {
			t.Errorf("id %q became %d", text, u.UID)
		}
	})
}

// TestFilterCleansAttributes: the filter changes the header that is unpacked.
func TestFilterCleansAttributes(t *testing.T) {
	data := tarOf(t, xattr(reg("f", ""), "security.selinux", "x"))
	h, err := tar.NewReader(bytes.NewReader(data)).Next()
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	f := layerFilter{lim: DefaultLimits()}
	if ok, err := f.check(h); !ok || err != nil || h.PAXRecords[xattrRecord+"security.selinux"] != "" {
		t.Errorf("check = %v, %v, records %q", ok, err, h.PAXRecords)
	}
}
