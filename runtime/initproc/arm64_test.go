//go:build !arm64

package initproc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestArm64 runs the interpreter's tests for arm64 under qemu's user mode emulation.
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
	cmd := exec.Command(qemu, binary, "-test.v", "-test.run", "^Test(Interpreter|Image|Failure|Program|Plan)")
	cmd.Env = append(os.Environ(), emulatorEnv+"="+qemu)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if passed := strings.Count(string(out), "--- PASS"); passed < 10 {
		t.Errorf("only %d tests passed: %s", passed, out)
	}
}
