package options

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestParse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("# ours\nprofile = \"lint\"\nsystemdCgroup = true # yes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	body := func(s string) *anypb.Any { return pack(t, &runtimeoptions.Options{ConfigBody: []byte(s)}) }
	for _, tc := range []struct {
		name string
		in   *anypb.Any
		want Options
		err  string
	}{
		{name: "nothing"},
		{name: "empty", in: &anypb.Any{}},
		{
			name: "runc", in: pack(t, &runcoptions.Options{Root: "/r", SystemdCgroup: true, NoPivotRoot: true, IoUid: 5, BinaryName: "x"}),
			want: Options{Root: "/r", SystemdCgroup: true, NoPivotRoot: true, IOUID: 5},
		},
		{name: "json", in: body(`{"profile": "offline", "ioGid": 7}`), want: Options{Profile: "offline", IOGID: 7}},
		{name: "toml", in: body("profile = 'offline'\nroot = \"/r\"\n"), want: Options{Profile: "offline", Root: "/r"}},
		{name: "base64", in: body("cHJvZmlsZSA9ICdvZmZsaW5lJw"), want: Options{}, err: "not a setting"},
		{name: "base64 of json", in: body("eyJwcm9maWxlIjoib2ZmbGluZSJ9"), want: Options{Profile: "offline"}},
		{name: "file", in: pack(t, &runtimeoptions.Options{ConfigPath: file}), want: Options{Profile: "lint", SystemdCgroup: true}},
		{
			name: "file and body", in: pack(t, &runtimeoptions.Options{ConfigPath: file, ConfigBody: []byte("profile='test'")}),
			want: Options{Profile: "test", SystemdCgroup: true},
		},
		{name: "unknown type", in: &anypb.Any{TypeUrl: "x/y"}, err: "unknown type"},
		{name: "damaged", in: &anypb.Any{TypeUrl: runcType, Value: []byte{0xff}}, err: "decode options"},
		{name: "unknown key", in: body("colour = 'red'"), err: "unknown field"},
		{name: "key twice", in: body("profile='a'\nprofile='b'"), err: "again"},
		{name: "table", in: body("[x]\n"), err: "not a setting"},
		{name: "wrong value", in: body("systemdCgroup = yes"), err: "not a string, a number or a boolean"},
		{name: "open string", in: body("profile = 'a"), err: "not a string"},
		{name: "relative root", in: body("root = 'r'"), err: "not absolute"},
		{name: "relative file", in: pack(t, &runtimeoptions.Options{ConfigPath: "c.toml"}), err: "not absolute"},
		{name: "missing file", in: pack(t, &runtimeoptions.Options{ConfigPath: "/no/such"}), err: "no such file"},
		{name: "id that wraps round (CVE-2024-40635)", in: body("ioUid = 4294967295"), err: "not an id"},
		{name: "cgroup outside", in: body("shimCgroup = '/../x'"), err: "leaves the hierarchy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.in)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Fatalf("got %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
	if _, err := Parse(&anypb.Any{TypeUrl: "x"}); !errors.Is(err, ErrUnknownType) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("profile = 'a' # b")
	f.Add(`{"root": "/x"}`)
	f.Fuzz(func(_ *testing.T, s string) {
		var o Options
		o.decode([]byte(s)) //nolint:errcheck // that it returns is what counts
	})
}
