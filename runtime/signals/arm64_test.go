//go:build !arm64

package signals_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestArm64 runs the handler for arm64 under qemu's user mode emulation.
func TestArm64(t *testing.T) {
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		t.Skip("probe qemu-aarch64-static: " + err.Error())
	}
	binary := filepath.Join(t.TempDir(), "arm64.test")
	build := exec.Command("go", "test", "-c", "-o", binary, ".")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0", "GOOS=linux")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build for arm64: %v: %s", err, out)
	}
	cmd := exec.Command(qemu, binary, "-test.timeout=2m", "-test.run", "^TestForward$")
	cmd.Env = append(os.Environ(), emulatorEnv+"="+qemu)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
