package stdio

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnlyFIFOsAreFIFOs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openFIFO(path, unix.O_RDONLY); err == nil {
		t.Error("a file is taken for a fifo")
	}
}
