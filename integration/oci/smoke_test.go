package oci

import (
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func TestRun(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		return box.Bare(t, p).RunSpec(t, harness.Sh("echo hello; id; exit 3"))
	}, harness.Same, harness.Exits(3), harness.Prints("hello"))
}
