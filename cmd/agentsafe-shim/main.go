package main

import (
	"os"

	"github.com/agentsafe/agentsafe/shim/bootstrap"
)

// version and commit are set by the linker.
var version, commit = "0.1.0-dev", "" //nolint:gochecknoglobals // the linker needs a variable

func main() { os.Exit(bootstrap.Main(os.Args, bootstrap.Build{Version: version, Commit: commit})) }
