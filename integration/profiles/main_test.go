package profiles

import (
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// box is where all tests of this package run.
var box *harness.Box

func TestMain(m *testing.M) { harness.Main(m, harness.JustBox(&box)) }
