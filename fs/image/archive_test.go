package image

import (
	"archive/tar"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

func TestSelectReadsBothFormats(t *testing.T) {
	layer := tarOf(t, reg("hello", "hi"))
	config := v1.ImageConfig{
		Env: []string{"A=b"}, Entrypoint: []string{"/e"}, Cmd: []string{"c"},
		User: "7", WorkingDir: "srv/../app",
	}
	docker := tarOf(t, dockerSave(t, config, layer)...)
	tests := map[string]struct {
		data []byte
		name string
	}{
		"docker save":       {docker, "test:latest"},
		"docker save, gzip": {gzipOf(t, docker), "test:latest"},
		"docker save, zstd": {zstdOf(t, docker), "test:latest"},
		"OCI":               {tarOf(t, ociLayout(t, config, [][]byte{layer}, [][]byte{layer})...), "test:oci"},
		"OCI, gzip layers":  {tarOf(t, ociLayout(t, config, [][]byte{layer}, [][]byte{gzipOf(t, layer)})...), "test:oci"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, err := openArchive(t, tt.data, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			img, err := a.Select("", here())
			if err != nil {
				t.Fatal(err)
			}
			if img.Name != tt.name || len(img.Layers) != 1 || img.Config.WorkingDir != "/app" || img.Config.User != "7" {
				t.Errorf("image = %+v", img)
			}
			if got := strings.Join(img.Config.Args([]string{"x"}), " "); got != "/e x" {
				t.Errorf("Args = %q", got)
			}
			if _, err := a.Select(tt.name, here()); err != nil {
				t.Errorf("select by name: %v", err)
			}
			_, err = a.Select("other", here())
			wantError(t, err, tt.name)
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	long := strings.Repeat("x", 300)
	tests := map[string]struct {
		data []byte
		lim  Limits
		want string
	}{
		"empty":             {nil, Limits{}, "neither index.json"},
		"noise":             {[]byte(strings.Repeat("noise", 1000)), Limits{}, "invalid tar header"},
		"climbing name":     {tarOf(t, reg("../manifest.json", "[]")), Limits{}, "leaves the archive"},
		"climbing link":     {tarOf(t, symlink("a", "../../etc/shadow")), Limits{}, "leaves the archive"},
		"absolute link":     {tarOf(t, symlink("manifest.json", "/etc/shadow")), Limits{}, "not in the archive"},
		"two manifests":     {tarOf(t, reg("manifest.json", "[]"), reg("./manifest.json", "[]")), Limits{}, "occurs twice"},
		"link loop":         {tarOf(t, symlink("manifest.json", "b"), symlink("b", "manifest.json")), Limits{}, "too many links"},
		"device":            {tarOf(t, file{tar.Header{Name: "d", Typeflag: tar.TypeChar}, ""}), Limits{}, "in an image archive"},
		"too many entries":  {tarOf(t, reg("a", ""), reg("b", ""), reg("c", "")), Limits{ArchiveEntries: 2}, "archive entries"},
		"huge manifest":     {tarOf(t, reg("manifest.json", long)), Limits{MetadataBytes: 200}, "metadata bytes"},
		"compressed bomb":   {gzipOf(t, make([]byte, 1<<20)), Limits{ArchiveBytes: 1 << 16}, "archive bytes"},
		"not JSON":          {tarOf(t, reg("manifest.json", "{")), Limits{}, "parse manifest.json"},
		"no images":         {tarOf(t, reg("manifest.json", "[]")), Limits{}, "none for"},
		"config climbs":     {tarOf(t, reg("manifest.json", `[{"Config":"../../etc/passwd"}]`)), Limits{}, "leaves the archive"},
		"layer climbs":      {tarOf(t, reg("manifest.json", `[{"Config":"c","Layers":["../l"]}]`)), Limits{}, "leaves the archive"},
		"config missing":    {tarOf(t, reg("manifest.json", `[{"Config":"c"}]`)), Limits{}, "not in the archive"},
		"sha512 in index":   {tarOf(t, reg("index.json", `{"manifests":[{"digest":"sha512:00"}]}`)), Limits{}, "not sha256"},
		"digest as path":    {tarOf(t, reg("index.json", `{"manifests":[{"digest":"sha256:../../../etc/passwd"}]}`)), Limits{}, "not sha256"},
		"truncated archive": {tarOf(t, reg("manifest.json", long))[:600], Limits{}, "unexpected EOF"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, err := openArchive(t, tt.data, tt.lim)
			if err == nil {
				_, err = a.Select("", here())
			}
			wantError(t, err, tt.want)
		})
	}
}

func TestSelectRefusesWrongDigest(t *testing.T) {
	layer := tarOf(t, reg("hello", "hi"))
	for name, files := range map[string][]file{
		"docker config": dockerSave(t, v1.ImageConfig{}, layer),
		"OCI blobs":     ociLayout(t, v1.ImageConfig{}, [][]byte{layer}, [][]byte{layer}),
	} {
		t.Run(name, func(t *testing.T) {
			for i, f := range files {
				if strings.Contains(f.data, `"rootfs"`) {
					files[i].data = strings.Replace(f.data, `"rootfs"`, `"rootfS"`, 1)
				}
			}
			a, err := openArchive(t, tarOf(t, files...), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = a.Select("", here())
			if _, ok := errors.AsType[*DigestError](err); !ok {
				t.Errorf("error = %v, want a DigestError", err)
			}
		})
	}
}

func TestIndexWalkIsBounded(t *testing.T) {
	// An index that contains itself can't be written (its digest would be its
	// own contents), so depth is tested with a chain.
	data := `{"manifests":[]}`
	var files []file
	for range 6 {
		d := v1.Descriptor{MediaType: v1.MediaTypeImageIndex, Digest: blobDigest(data)}
		files = append(files, reg("blobs/sha256/"+d.Digest.Encoded(), data))
		data = jsonOf(t, v1.Index{Manifests: []v1.Descriptor{d}})
	}
	a, err := openArchive(t, tarOf(t, append(files, reg("index.json", data))...), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.Select("", here())
	wantError(t, err, "nested deeper")
}

func TestOpenDoesNotWaitForFIFO(t *testing.T) {
	p := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(p, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(p, t.TempDir(), Limits{})
	wantError(t, err, "not a regular file")
}

func TestParseConfigRefuses(t *testing.T) {
	ok := configOf(v1.ImageConfig{}, []byte("l"))
	tests := map[string]struct {
		change func(*v1.Image)
		want   string
	}{
		"architecture": {func(i *v1.Image) { i.Architecture = "s390x" }, `built for "linux"/"s390x"`},
		"os":           {func(i *v1.Image) { i.OS = "windows" }, "built for"},
		"rootfs type":  {func(i *v1.Image) { i.RootFS.Type = "x" }, "rootfs.type"},
		"diff id":      {func(i *v1.Image) { i.RootFS.DiffIDs[0] = "sha256:zz" }, "rootfs.diff_ids[0]"},
		"env form":     {func(i *v1.Image) { i.Config.Env = []string{"=x"} }, "config.Env[0]"},
		"NUL in cmd":   {func(i *v1.Image) { i.Config.Cmd = []string{"a\x00b"} }, "config.Cmd: NUL byte"},
		"huge env":     {func(i *v1.Image) { i.Config.Env = []string{"A=" + strings.Repeat("x", 2<<20)} }, "config.Env: bytes"},
		"long workdir": {func(i *v1.Image) { i.Config.WorkingDir = strings.Repeat("/x", 4000) }, "config.WorkingDir"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			img := ok
			img.RootFS.DiffIDs = append(img.RootFS.DiffIDs[:0:0], ok.RootFS.DiffIDs...)
			tt.change(&img)
			_, _, err := parseConfig([]byte(jsonOf(t, img)), here())
			wantError(t, err, tt.want)
		})
	}
}

func TestNameIsPrintable(t *testing.T) {
	for name, want := range map[string]bool{"a/b:c@d": true, "": false, "\x1b[31mred": false, "a b": false, "-x": false} {
		if got := validName(name); got != want {
			t.Errorf("validName(%q) = %v", name, got)
		}
	}
}
