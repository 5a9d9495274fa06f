package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// here is the platform of the test images.
func here() Platform { return Platform{OS: "linux", Architecture: runtime.GOARCH} }

// file is one tar entry of a test: contents go with regular files.
type file struct {
	tar.Header
	data string
}

func reg(name, data string) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}, data}
}

func dir(name string) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func symlink(name, target string) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, ""}
}

func hardlink(name, target string) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target, Mode: 0o644}, ""}
}

func xattr(f file, name, value string) file {
	f.PAXRecords = map[string]string{xattrRecord + name: value}
	f.Format = tar.FormatPAX
	return f
}

func tarOf(tb testing.TB, files ...file) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := f.Header
		if err := w.WriteHeader(&h); err != nil {
			tb.Fatalf("write header %q: %v", h.Name, err)
		}
		if _, err := w.Write([]byte(f.data)); err != nil {
			tb.Fatalf("write %q: %v", h.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func gzipOf(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func zstdOf(tb testing.TB, data []byte) []byte {
	tb.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

func jsonOf(tb testing.TB, v any) string {
	tb.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return string(data)
}

func configOf(c v1.ImageConfig, layers ...[]byte) v1.Image {
	img := v1.Image{Config: c, RootFS: v1.RootFS{Type: "layers"}}
	img.OS, img.Architecture = "linux", runtime.GOARCH
	for _, l := range layers {
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, digest.FromBytes(l))
	}
	return img
}

// dockerSave returns the files of a docker-save archive with these layers.
func dockerSave(tb testing.TB, c v1.ImageConfig, layers ...[]byte) []file {
	tb.Helper()
	config := jsonOf(tb, configOf(c, layers...))
	id := digest.FromString(config).Encoded()
	var files []file
	var names []string
	for _, l := range layers {
		name := digest.FromBytes(l).Encoded() + "/layer.tar"
		names = append(names, name)
		files = append(files, reg(name, string(l)))
	}
	manifest := []map[string]any{{"Config": id + ".json", "RepoTags": []string{"test:latest"}, "Layers": names}}
	return append(files, reg(id+".json", config), reg("manifest.json", jsonOf(tb, manifest)))
}

// ociLayout returns the files of an OCI layout; stored are the layers as they
// are kept (perhaps compressed), plain the same uncompressed.
func ociLayout(tb testing.TB, c v1.ImageConfig, plain, stored [][]byte) []file {
	tb.Helper()
	var files []file
	blob := func(data string) v1.Descriptor {
		d := digest.FromString(data)
		files = append(files, reg("blobs/sha256/"+d.Encoded(), data))
		return v1.Descriptor{Digest: d, Size: int64(len(data))}
	}
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest}
	m.Config = blob(jsonOf(tb, configOf(c, plain...)))
	for _, s := range stored {
		m.Layers = append(m.Layers, blob(string(s)))
	}
	manifest := blob(jsonOf(tb, m))
	manifest.MediaType = v1.MediaTypeImageManifest
	manifest.Platform = &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	inner := blob(jsonOf(tb, v1.Index{Manifests: []v1.Descriptor{
		{
			MediaType: v1.MediaTypeImageManifest, Digest: digest.FromString("not here"),
			Platform: &v1.Platform{OS: "linux", Architecture: "s390x"},
		},
		manifest,
	}}))
	inner.MediaType = v1.MediaTypeImageIndex
	inner.Annotations = map[string]string{v1.AnnotationRefName: "test:oci"}
	index := jsonOf(tb, v1.Index{Manifests: []v1.Descriptor{inner}})
	return append(files, reg("index.json", index), reg("oci-layout", `{"imageLayoutVersion":"1.0.0"}`))
}

func writeArchive(tb testing.TB, data []byte) string {
	tb.Helper()
	p := filepath.Join(tb.TempDir(), "image.tar")
	if err := os.WriteFile(p, data, 0o600); err != nil {
		tb.Fatal(err)
	}
	return p
}

func openArchive(tb testing.TB, data []byte, lim Limits) (*Archive, error) {
	tb.Helper()
	a, err := Open(writeArchive(tb, data), tb.TempDir(), lim)
	if err == nil {
		tb.Cleanup(func() {
			if err := a.Close(); err != nil {
				tb.Error(err)
			}
		})
	}
	return a, err
}

// wantError fails unless err says what is wanted.
func wantError(tb testing.TB, err error, want string) {
	tb.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		tb.Errorf("error = %v, want one with %q", err, want)
	}
}
