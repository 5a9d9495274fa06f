package attacks

import (
	"path/filepath"
	"strings"
	"testing"
)

func checkpointArgs() []string {
	return []string{"checkpoint", "--image-path", "BUNDLE/images", "ID"}
}

func restoreArgs() []string {
	return []string{"restore", "--detach", "--image-path", "BUNDLE/images", "--bundle", "BUNDLE", "ID"}
}

// standInCriu makes a CRIU that dies at a step; "" has none.
func standInCriu(t *testing.T, step string) string {
	t.Helper()
	intruder, err := program("intruder")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(box.TempDir(t), "criu")
	write(t, file, "#!/bin/sh\nexec "+intruder+" criu '"+step+"' \"$@\"\n", 0o755)
	return file
}

// TestCrash_Criu ends CRIU at each of its steps, of a checkpoint and of a restore: a checkpoint that fails leaves a container
// that can be removed, a restore that fails leaves nothing, and the id can be used again. The steps of the runtime itself are
// in the table of operations.
func TestCrash_Criu(t *testing.T) {
	for _, verb := range []string{"checkpoint", "restore"} {
		for _, step := range []string{"first", "image", "made", "number", "late", ""} {
			if verb == "restore" && step == "image" || verb == "checkpoint" && (step == "made" || step == "number") {
				continue
			}
			t.Run(verb+" "+step, func(t *testing.T) {
				for _, o := range operations() {
					if o.name != verb {
						continue
					}
					c := newCrash(t, o)
					for _, args := range o.before {
						c.must(t, c.line(args)...)
					}
					c.Global = []string{"--criu", standInCriu(t, step)}
					r := c.do(t, c.line(o.args)...)
					if (r.Exit == 0) != (step == "") || step != "" && !strings.Contains(r.Stderr, "criu "+map[string]string{"checkpoint": "dump", "restore": "restore"}[verb]) {
						t.Errorf("%v", r)
					}
					switch status := c.do(t, "state", c.b.ID); {
					case verb == "checkpoint" && step != "" && (status.Exit != 0 || step != "late" && !strings.Contains(status.Stdout, "running")):
						t.Errorf("after a checkpoint that failed:\n%v", status)
					case verb == "restore" && step == "" && !strings.Contains(status.Stdout, "running"):
						t.Errorf("after a restore:\n%v", status)
					case verb == "restore" && step != "":
						if left := c.leftovers(t); len(left) > 0 {
							t.Errorf("left by the failed restore:\n  %s", strings.Join(left, "\n  "))
						}
					}
					c.recovers(t, verb+" with a CRIU that dies: "+step)
				}
			})
		}
	}
}
