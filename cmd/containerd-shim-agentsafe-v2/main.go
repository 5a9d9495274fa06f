package main

import (
	"os"

	"github.com/agentsafe/agentsafe/shim/launch"
)

// version and commit are set by the linker.
var version, commit = "0.1.0-dev", "" //nolint:gochecknoglobals // the linker needs a variable

func main() { os.Exit(launch.Main(os.Args, version, commit)) }
