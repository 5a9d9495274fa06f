package profiles

import (
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// The package is in every start of the runtime: what it imports is paid for each time. encoding/json, regexp and YAML
// have no place here.
func TestImports(t *testing.T) {
	allowed := []string{
		"crypto/sha256", "encoding/binary", "encoding/hex", "errors", "fmt", "maps", "math", "net/netip", "path", "slices", "strconv",
		"strings", "time", "unicode/utf8",
		"github.com/opencontainers/runtime-spec/specs-go", "golang.org/x/sys/unix", "github.com/agentsafe/agentsafe/netns",
		"github.com/agentsafe/agentsafe/netns/egress",
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range parsed.Imports {
			if path := strings.Trim(i.Path.Value, `"`); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", f.Name(), path)
			}
		}
	}
}
