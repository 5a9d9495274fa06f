package hardening

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box     *harness.Box
	engine  *harness.Docker
	busybox harness.Image
)

const image = "busybox:test"

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, err := harness.Busybox()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			var err error
			if busybox, err = harness.Busybox(); err != nil {
				return nil, err
			}
			if engine, err = b.StartDocker(); err != nil {
				return nil, err
			}
			box = b
			return engine.Stop, engine.Import(busybox.Tar, image)
		},
	})
}

func probe() string { return filepath.Join(busybox.Rootfs, "bin/probe") }

// reports gathers the reports of one runtime in each way into a container.
func reports(t *testing.T, p harness.Peer) map[string]harness.Report {
	t.Helper()
	out := map[string]harness.Report{}
	bare := box.Bare(t, p)
	b := bare.Up(t, nil)
	out["bare, exec"] = harness.ParseReport(t, bare.Do(t, "exec", b.ID, "probe", "report"))
	out["bare, first process"] = harness.ParseReport(t, bare.RunSpec(t, harness.Sh("exec probe report")))
	name := engine.Up(t, p, image, "sleep", "1000")
	out["docker, exec"] = harness.ParseReport(t, engine.Do(t, "exec", name, "probe", "report"))
	out["docker, exec by a user"] = harness.ParseReport(t, engine.Do(t, "exec", "--user", "app", name, "probe", "report"))
	out["docker, first process"] = harness.ParseReport(t, engine.Do(t, "run", "--rm", "--runtime", p.Name, image, "probe", "report"))
	out["docker, privileged exec"] = harness.ParseReport(t, engine.Do(t, "exec", name, "probe", "report"))
	return out
}
