package clock

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var box *harness.Box

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, err := harness.Busybox()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			for name, text := range map[string]string{
				"short": "limits: {wallClock: 4s}\nevidence: {mode: \"on\"}",
				"long":  "limits: {wallClock: 30m}\nexec: {wallClock: 3s}\nevidence: {mode: \"on\"}",
			} {
				file := filepath.Join(b.Dir, name+".yaml")
				text = "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: " + name + "}\nextends: agent\n" + text + "\n"
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					return nil, err
				}
				if out, err := exec.Command(program("agentsafectl"), "profile", "install", file).CombinedOutput(); err != nil {
					return nil, fmt.Errorf("install profile %s: %w\n%s", name, err, out)
				}
			}
			return nil, nil
		},
	})
}

// program is one of ours.
func program(name string) string {
	path, err := harness.RuntimePath()
	if err != nil {
		return err.Error()
	}
	return filepath.Join(filepath.Dir(path), name)
}
