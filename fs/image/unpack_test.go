package image

import (
	"archive/tar"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

func blobDigest(data string) digest.Digest { return digest.FromString(data) }

// needUnpack skips where layers can't be written as they are.
func needUnpack(tb testing.TB) {
	tb.Helper()
	p := filepath.Join(tb.TempDir(), "probe")
	if err := unix.Mknod(p, unix.S_IFCHR, 0); err != nil {
		tb.Skipf("probe mknod: %v", err)
	}
	if err := unix.Setxattr(tb.TempDir(), "trusted.agentsafe.probe", []byte("y"), 0); err != nil {
		tb.Skipf("probe trusted xattr: %v", err)
	}
}

// unpackImage opens, selects and unpacks, and returns the store's directory
// beside the layer paths.
func unpackImage(tb testing.TB, data []byte, lim Limits) (dir string, layers []string, got Unpacked, err error) {
	tb.Helper()
	a, err := openArchive(tb, data, lim)
	if err != nil {
		tb.Fatal(err)
	}
	img, err := a.Select("", here())
	if err != nil {
		tb.Fatal(err)
	}
	dir = filepath.Join(tb.TempDir(), "cache")
	s, err := OpenStore(dir, lim)
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Close()
	layers, got, err = s.Unpack(tb.Context(), a, img)
	return dir, layers, got, err
}

func TestUnpack(t *testing.T) {
	needUnpack(t)
	defer unix.Umask(unix.Umask(0o077)) // must not show in the layers
	setid := reg("bin/su", "#!")
	setid.Mode, setid.Uid, setid.Gid = 0o4755, 12, 34
	second := hardlink("bin/su2", "bin/su") // tar repeats the metadata of the inode
	second.Mode, second.Uid, second.Gid = setid.Mode, setid.Uid, setid.Gid
	lower := tarOf(t,
		dir("./"), dir("./bin"), setid, reg("bin/gone", "x"), dir("opaque"), reg("opaque/old", "x"),
		second, symlink("etc", "/elsewhere/etc"), reg("etc/passwd", "in root"),
		reg("twice", "first"), reg("twice", "second"), xattr(reg("x", ""), "user.note", "kept"),
		xattr(reg("y", ""), "trusted.note", "dropped"),
		file{tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666}, ""},
		file{tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o644}, ""},
	)
	upper := tarOf(t, reg("bin/.wh.gone", ""), reg("opaque/.wh..wh..opq", ""), reg("opaque/new", "n"), reg(".wh..wh.plnk", ""))
	data := tarOf(t, ociLayout(t, v1.ImageConfig{}, [][]byte{lower, upper}, [][]byte{zstdOf(t, lower), gzipOf(t, upper)})...)
	_, layers, got, err := unpackImage(t, data, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if len(layers) != 2 || got.SkippedDevices != 1 {
		t.Fatalf("layers %q, %+v", layers, got)
	}
	low, up := layers[0], layers[1]
	var st, st2 unix.Stat_t
	if err := unix.Stat(low+"/bin/su", &st); err != nil || st.Mode&0o7777 != 0o4755 || st.Uid != 12 || st.Gid != 34 {
		t.Errorf("bin/su: mode %o owner %d:%d, %v", st.Mode&0o7777, st.Uid, st.Gid, err)
	}
	if err := unix.Stat(low+"/bin/su2", &st2); err != nil || st2.Ino != st.Ino {
		t.Errorf("hard link is another file: %v", err)
	}
	if err := unix.Stat(low, &st); err != nil || st.Mode&0o7777 != 0o755 {
		t.Errorf("root mode %o, %v", st.Mode&0o7777, err)
	}
	for name, want := range map[string]string{"elsewhere/etc/passwd": "in root", "twice": "second"} {
		if data, err := os.ReadFile(filepath.Join(low, name)); err != nil || string(data) != want {
			t.Errorf("%s = %q, %v", name, data, err)
		}
	}
	if got := attribute(low+"/x", "user.note"); got != "kept" {
		t.Errorf("user.note = %q", got)
	}
	if got := attribute(low+"/y", "trusted.note"); got != "" {
		t.Errorf("trusted.note = %q", got)
	}
	if err := unix.Stat(up+"/bin/gone", &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf("whiteout: mode %o rdev %d, %v", st.Mode, st.Rdev, err)
	}
	if got := attribute(up+"/opaque", "trusted.overlay.opaque"); got != "y" {
		t.Errorf("opaque directory: %q", got)
	}
	if _, err := os.Lstat(up + "/.wh..wh.plnk"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("aufs leftovers were unpacked: %v", err)
	}
}

// attribute returns an extended attribute, or nothing.
func attribute(path, name string) string {
	buf := make([]byte, 16)
	n, err := unix.Getxattr(path, name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// TestAttack_Layer checks that each hostile layer is refused with a reason, and
// that neither the cache nor the world outside of it keeps anything.
func TestAttack_Layer(t *testing.T) {
	needUnpack(t)
	big := reg("big", "")
	big.Size = 1 << 40
	tests := map[string]struct {
		files []file
		lim   Limits
		want  string
	}{
		"climb":                    {[]file{reg("../evil", "x")}, Limits{}, "name climbs"},
		"climb inside":             {[]file{dir("a"), reg("a/../../evil", "x")}, Limits{}, "name climbs"},
		"hard link out":            {[]file{hardlink("l", "../../../etc/shadow")}, Limits{}, "hard link to"},
		"hard link to host":        {[]file{hardlink("l", "/etc/shadow")}, Limits{}, "no such file"},
		"whiteout of parent":       {[]file{reg(".wh...", "")}, Limits{}, "whiteout of nothing"},
		"whiteout of itself":       {[]file{reg("a/.wh.", "")}, Limits{}, "whiteout of nothing"},
		"overlay redirect":         {[]file{xattr(dir("d"), "trusted.overlay.redirect", "/etc")}, Limits{}, "overlayfs would follow it"},
		"overlay redirect as user": {[]file{xattr(dir("d"), "user.overlay.redirect", "/etc")}, Limits{}, "overlayfs would follow it"},
		"overlay metacopy":         {[]file{xattr(reg("f", ""), "trusted.overlay.metacopy", "")}, Limits{}, "overlayfs would follow it"},
		"owner -1":                 {[]file{{tar.Header{Name: "f", Typeflag: tar.TypeReg, Uid: 1<<32 - 1, Format: tar.FormatPAX}, ""}}, Limits{}, "out of range"},
		"owner 2^32":               {[]file{{tar.Header{Name: "f", Typeflag: tar.TypeReg, Gid: 1 << 32, Format: tar.FormatPAX}, ""}}, Limits{}, "out of range"},
		"long component":           {[]file{reg(strings.Repeat("n", 256), "")}, Limits{}, "longer than"},
		"long path":                {[]file{reg(strings.Repeat("n/", 3000)+"f", "")}, Limits{}, "over-long"},
		"too many entries":         {[]file{dir("a"), dir("b"), dir("c")}, Limits{LayerEntries: 2}, "layer entries"},
		"too many bytes":           {[]file{reg("a", "12345"), reg("b", "678901")}, Limits{LayerBytes: 10}, "layer bytes"},
		"contiguous file":          {[]file{{tar.Header{Name: "f", Typeflag: tar.TypeCont}, ""}}, Limits{}, "not for layers"},
		"symlink without a target": {[]file{symlink("l", "")}, Limits{}, "empty"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			layer := tarOf(t, append([]file{reg("before", "x")}, tt.files...)...)
			dir, _, _, err := unpackImage(t, tarOf(t, dockerSave(t, v1.ImageConfig{}, layer)...), tt.lim)
			wantError(t, err, tt.want)
			wantEmptyCache(t, dir)
		})
	}
}

// TestAttack_LayerSymlinkParent: a link made by the layer itself must be
// followed beneath the layer, not on the host.
func TestAttack_LayerSymlinkParent(t *testing.T) {
	needUnpack(t)
	outside := t.TempDir()
	layer := tarOf(t,
		symlink("abs", outside), reg("abs/evil", "x"),
		symlink("rel", "../../../../../../../.."+outside), reg("rel/evil2", "x"),
		symlink("deep", "abs"), hardlink("deep/evil3", "abs/evil"), reg("abs/.wh.victim", ""))
	_, layers, _, err := unpackImage(t, tarOf(t, dockerSave(t, v1.ImageConfig{}, layer)...), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(outside)
	if err != nil || len(left) != 0 {
		t.Fatalf("the layer wrote outside: %v, %v", left, err)
	}
	for _, name := range []string{"evil", "evil2", "evil3", "victim"} {
		if _, err := os.Lstat(filepath.Join(layers[0], outside, name)); err != nil {
			t.Errorf("not beneath the layer: %v", err)
		}
	}
}

// TestAttack_SparseBomb: a header of 512 bytes that announces a terabyte.
func TestAttack_SparseBomb(t *testing.T) {
	f := layerFilter{lim: DefaultLimits()}
	_, err := f.check(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 1 << 40})
	wantError(t, err, "layer bytes")
}

func TestUnpackRefusesWrongContents(t *testing.T) {
	needUnpack(t)
	layer := tarOf(t, reg("hello", "hi"))
	other := tarOf(t, reg("hello", "no"))
	tests := map[string][]byte{
		"diff id":         tarOf(t, ociLayout(t, v1.ImageConfig{}, [][]byte{layer}, [][]byte{other})...),
		"bytes after end": tarOf(t, ociLayout(t, v1.ImageConfig{}, [][]byte{layer}, [][]byte{append(slices.Clip(layer), "tail"...)})...),
	}
	files := ociLayout(t, v1.ImageConfig{}, [][]byte{layer}, [][]byte{gzipOf(t, layer)})
	for i, f := range files {
		if strings.HasPrefix(f.data, "\x1f\x8b") { // same contents, other compression header
			b := []byte(f.data)
			b[9] ^= 0xff
			files[i].data = string(b)
		}
	}
	tests["stored blob"] = tarOf(t, files...)
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			dir, _, _, err := unpackImage(t, data, Limits{})
			if _, ok := errors.AsType[*DigestError](err); !ok {
				t.Errorf("error = %v, want a DigestError", err)
			}
			wantEmptyCache(t, dir)
		})
	}
}

func TestUnpackUsesCacheAndCleansCrash(t *testing.T) {
	needUnpack(t)
	layer := tarOf(t, reg("hello", "hi"))
	a, err := openArchive(t, tarOf(t, dockerSave(t, v1.ImageConfig{}, layer)...), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	img, err := a.Select("", here())
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(filepath.Join(t.TempDir(), "cache"), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.root.Mkdir("tmp/"+img.Layers[0].DiffID.Encoded(), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 0} {
		_, got, err := s.Unpack(t.Context(), a, img)
		if err != nil || got.Entries != want {
			t.Errorf("pass %d: %+v, %v", i, got, err)
		}
	}
	// A short name that stands for something else is never used.
	if err := s.root.Remove(filepath.Join("l", firstName(t, s, "l"))); err != nil {
		t.Fatal(err)
	}
	short, err := s.link(img.Layers[0].DiffID)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.root.Remove(short), s.root.Symlink("/etc", short)); err != nil {
		t.Fatal(err)
	}
	_, _, err = s.Unpack(t.Context(), a, img)
	wantError(t, err, "another layer")
}

func firstName(tb testing.TB, s *Store, sub string) string {
	tb.Helper()
	list, err := os.ReadDir(filepath.Join(s.dir, sub))
	if err != nil || len(list) == 0 {
		tb.Fatalf("%s: %v, %v", sub, list, err)
	}
	return list[0].Name()
}

func wantEmptyCache(tb testing.TB, dir string) {
	tb.Helper()
	for _, sub := range []string{layersDir, tempDir, linksDir} {
		left, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil || len(left) != 0 {
			tb.Errorf("left in %s: %v, %v", sub, left, err)
		}
	}
}

func TestOverlayOptions(t *testing.T) {
	got, err := OverlayOptions([]string{"/c/l/A", "/c/l/B"}, "/r/upper", "/r/work")
	want := "lowerdir=/c/l/B:/c/l/A,upperdir=/r/upper,workdir=/r/work,redirect_dir=off,metacopy=off,index=off,xino=off"
	if err != nil || strings.Join(got, ",") != want {
		t.Errorf("options = %q, %v", got, err)
	}
	many := make([]string, 200)
	for i := range many {
		many[i] = "/var/lib/agentsafe/images/l/ABCDEFGHIJKL"
	}
	_, err = OverlayOptions(many, "/u", "/w")
	wantError(t, err, "200 layers")
	if _, err := OverlayOptions(many[:DefaultLimits().Layers], "/run/agentsafe-run/0123456789abcdef/upper", "/run/agentsafe-run/0123456789abcdef/work"); err != nil {
		t.Errorf("the layer limit does not fit: %v", err)
	}
	_, err = OverlayOptions([]string{"/a:b"}, "/u", "/w")
	wantError(t, err, "character")
	_, err = OverlayOptions(nil, "/u", "/w")
	wantError(t, err, "without layers")
}

func isWhiteout(tb testing.TB, p string) bool {
	tb.Helper()
	var st unix.Stat_t
	return unix.Lstat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}
