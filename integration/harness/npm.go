package harness

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// NPM returns a folder that has packages of npm's registry, NAME@VERSION each, below node_modules; their scripts have not
// run. It needs the network the first time, so a suite's Prepare calls it before its tests do. name is the cache entry's.
func NPM(ctx context.Context, name string, packages ...string) (string, error) {
	return Cached("npm-"+name, strings.Join(packages, "\n"), func(dir string) error {
		args := append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir}, packages...)
		cmd := exec.CommandContext(ctx, "npm", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}
