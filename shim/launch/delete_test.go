package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"google.golang.org/protobuf/proto"

	"github.com/agentsafe/agentsafe/shim/bundle"
)

// What is left goes to the shim's program; what is gone is answered here.
func TestDelete(t *testing.T) {
	dir, root := t.TempDir(), t.TempDir()
	c := invocation()
	c.Bundle = dir
	var out strings.Builder
	clean := func(want bool, when string) {
		t.Helper()
		out.Reset()
		got, err := c.delete(&out)
		if err != nil || got != want || !want && out.Len() > 0 {
			t.Errorf("%s: got %t, %v, %q", when, got, err, out.String())
		}
	}
	clean(false, "nothing is known")
	if err := bundle.Save(dir, bundle.OptionsFile, bundle.Settings{Root: root}); err != nil {
		t.Fatal(err)
	}
	clean(false, "no exit is known")
	if err := bundle.Save(dir, bundle.ExitFile, &bundle.Exit{PID: 7, Status: 3, At: time.Unix(5, 0)}); err != nil {
		t.Fatal(err)
	}
	clean(true, "all is gone")
	var r task.DeleteResponse
	if err := proto.Unmarshal([]byte(out.String()), &r); err != nil || r.Pid != 7 || r.ExitStatus != 3 {
		t.Errorf("got %v, %v", &r, err)
	}
	if err := os.MkdirAll(filepath.Join(root, "k8s.io", "c1"), 0o700); err != nil {
		t.Fatal(err)
	}
	clean(false, "its state is left")
	if err := os.WriteFile(filepath.Join(dir, bundle.ExitFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	clean(false, "the exit is damaged")
}
