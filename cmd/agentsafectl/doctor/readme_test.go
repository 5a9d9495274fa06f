package doctor

import (
	"os"
	"strings"
	"testing"
)

// TestREADMERegistration holds the configurations in the README against what
// doctor looks for.
func TestREADMERegistration(t *testing.T) {
	data, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for i, part := range strings.Split(string(data), "```") {
		kind, block, ok := strings.Cut(part, "\n")
		if i%2 == 0 || !ok {
			continue
		}
		readers := map[string]func([]byte) (bool, error){}
		switch kind {
		case "json":
			readers["docker"] = dockerRegistered
		case "toml":
			readers["podman"], readers["containerd"] = podmanRegistered, containerdRegistered
		}
		for name, f := range readers {
			registered, err := f([]byte(block))
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, block)
			}
			found[name] = found[name] || registered
		}
	}
	for _, name := range []string{"docker", "podman", "containerd"} {
		if !found[name] {
			t.Errorf("README.md does not say how %s is told", name)
		}
	}
}
