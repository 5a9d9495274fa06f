package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	testPasswd = "# comment\nroot:x:0:0:root:/root:/bin/sh\n1000:x:0:0:trap:/:/bin/sh\napp:x:100:101::/srv/app:/bin/sh\nbroken:x:12\nrel:x:7:7::relative:\nneg:x:-1:0::/:\n"
	testGroup  = "root:x:0:\nstaff:x:50:app,other\napp:x:101:app\nwheel:x:10:app\n"
)

func TestResolveUser(t *testing.T) {
	tests := map[string]struct {
		want User
		err  string
	}{
		"":                        {want: User{Name: "root", Home: "/root"}},
		"root":                    {want: User{Name: "root", Home: "/root"}},
		"app":                     {want: User{UID: 100, GID: 101, Name: "app", Home: "/srv/app", Groups: []uint32{50, 10}}},
		"100":                     {want: User{UID: 100, GID: 101, Name: "app", Home: "/srv/app", Groups: []uint32{50, 10}}},
		"app:staff":               {want: User{UID: 100, GID: 50, Name: "app", Home: "/srv/app"}},
		"app:0":                   {want: User{UID: 100, GID: 0, Name: "app", Home: "/srv/app"}},
		"1000":                    {want: User{UID: 1000, Home: "/"}}, // CVE-2016-3697: not the account of that name
		"4294967294":              {want: User{UID: 4294967294, Home: "/"}},
		"rel":                     {want: User{UID: 7, GID: 7, Name: "rel", Home: "/"}},
		"4294967295":              {err: "out of range"},
		"4294967296":              {err: "out of range"},
		"99999999999999999999999": {err: "out of range"},
		"-1":                      {err: "no such account"},
		"neg":                     {err: "no such account"},
		"broken":                  {err: "no such account"},
		"+0":                      {err: "no such account"},
		"app:":                    {err: "empty name"},
		"app:nobody":              {err: "not in the image"},
		"a:b:c":                   {err: "no such account"},
	}
	for text, tt := range tests {
		t.Run(text, func(t *testing.T) {
			got, err := resolveUser(text, []byte(testPasswd), []byte(testGroup))
			if tt.err != "" {
				wantError(t, err, tt.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.UID != tt.want.UID || got.GID != tt.want.GID || got.Name != tt.want.Name ||
				got.Home != tt.want.Home || !slices.Equal(got.Groups, tt.want.Groups) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestAttack_AccountFiles(t *testing.T) {
	tests := map[string]struct {
		make func(root string) error
		want string
		uid  uint32
	}{
		"link to the host": {func(r string) error { return os.Symlink("/etc/passwd", filepath.Join(r, "etc/passwd")) }, "too many levels", 0},
		"link that climbs": {func(r string) error {
			return os.Symlink("../../../../../../etc/hostname", filepath.Join(r, "etc/passwd"))
		}, "", 0},
		"FIFO":      {func(r string) error { return unix.Mkfifo(filepath.Join(r, "etc/passwd"), 0o644) }, "not a regular file", 0},
		"directory": {func(r string) error { return unix.Mkdir(filepath.Join(r, "etc/passwd"), 0o755) }, "not a regular file", 0},
		"endless": {func(r string) error {
			return os.WriteFile(filepath.Join(r, "etc/group"), make([]byte, maxAccountFile+1), 0o644)
		}, "bytes", 0},
		"one line of a mib": {func(r string) error {
			return os.WriteFile(filepath.Join(r, "etc/passwd"), []byte(strings.Repeat("a", maxAccountFile)), 0o644)
		}, "", 5},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := t.TempDir()
			if err := unix.Mkdir(filepath.Join(r, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tt.make(r); err != nil {
				t.Fatal(err)
			}
			root, err := os.Open(r)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			got, err := LookupUser(root, "5")
			if tt.want != "" {
				wantError(t, err, tt.want)
				return
			}
			if err != nil || got.UID != 5 || got.Name != "" {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
