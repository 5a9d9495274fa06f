package layer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseOverlay(t *testing.T) {
	const info = "1 0 0:1 / / rw - overlay overlay rw,lowerdir=/e/l/B:/e/l/A,upperdir=/e/x/diff,workdir=/e/x/work\n" +
		"2 1 0:2 / /plain rw - ext4 /dev/x rw\n" +
		"3 1 0:3 / /new rw - overlay overlay rw,lowerdir+=/a,lowerdir+=/b\\134:c,upperdir=/u\n" +
		"4 1 0:4 / /ro rw - overlay overlay ro,lowerdir=/a:/b\n" +
		"5 1 0:5 / /relative rw - overlay overlay rw,lowerdir=l/B,upperdir=x/diff,workdir=x/work\n" +
		"6 1 0:6 / /over rw - overlay overlay rw,lowerdir=/a,upperdir=/first\n" +
		"7 1 0:7 / /over rw - overlay overlay rw,lowerdir=/a,upperdir=/second\n"
	for _, c := range []struct {
		point, upper string
		lowers       []string
		fails        bool
	}{
		{"/", "/e/x/diff", []string{"/e/l/B", "/e/l/A"}, false},
		{"/new", "/u", []string{"/a", "/b:c"}, false},
		{"/over", "/second", []string{"/a"}, false},
		{point: "/plain", fails: true},
		{point: "/ro", fails: true},
		{point: "/relative", fails: true},
		{point: "/nowhere", fails: true},
	} {
		upper, lowers, err := parseOverlay(info, c.point)
		if (err != nil) != c.fails || err == nil && (upper != c.upper || !slices.Equal(lowers, c.lowers)) {
			t.Errorf("%s: %q %q %v", c.point, upper, lowers, err)
		}
	}
}

func TestCompareRoot(t *testing.T) {
	b := newBench(t, nil) // for its directory, on a file system that holds overlays
	dir := filepath.Dir(b.host)
	write(t, dir, map[string]string{"one/etc/a": "1", "one/etc/b": "1", "two/etc/b": "2", "two/bin/x": "x", "upper/etc/b": "3", "upper/new": "n"})
	must(t, unix.Mknod(dir+"/upper/bin", unix.S_IFCHR, 0))
	must(t, os.Mkdir(dir+"/work", 0o755))
	info := filepath.Join(dir, "mountinfo")
	must(t, os.WriteFile(info, []byte("1 0 0:1 / / rw - overlay o rw,lowerdir="+dir+"/two:"+dir+"/one,upperdir="+dir+"/upper,workdir="+dir+"/work\n"), 0o644))
	c, err := CompareRoot(info, "/")
	must(t, err)
	defer c.Close()
	var got []string
	for _, ch := range c.List[0].Changes {
		got = append(got, string(ch.Op)+" "+ch.Path)
	}
	if want := []string{"delete bin", "modify etc/b", "add new"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
