package vm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// suite is a package whose tests run in the machine.
type suite struct {
	// dir is the package's directory in the repository.
	dir string
	// run is go test's -run; "" is all.
	run string
}

// name is the name of the compiled test.
func (s suite) name() string { return strings.ReplaceAll(s.dir, "/", "-") }

const sectionMark = "=== SECTION "

// script is what the machine runs: each suite in its directory, then a last line, without which the run counts as cut
// short.
func script(suites []suite) string {
	var b strings.Builder
	b.WriteString("mount --bind /t/busybox /bin/busybox\nexport AGENTSAFE_CACHE=/t/cache TMPDIR=/var/tmp AGENTSAFE_TEST_SLOW=10 AGENTSAFE_TEST_MACHINE=disposable\necho; uname -r\n")
	for i, s := range suites {
		fmt.Fprintf(&b, "echo; echo '%s%d %s'\ncd /t/src/%s && /t/tests/%s.test -test.v -test.timeout 25m -test.run '%s'\necho \"=== EXIT $?\"\n",
			sectionMark, i, s.dir, s.dir, s.name(), s.run)
	}
	fmt.Fprintf(&b, "echo; echo '%send'\n", sectionMark)
	return b.String()
}

// buildWork makes the second disk: this checkout with its programs, and the compiled tests.
func buildWork(ctx context.Context, dir string, suites []suite) (string, error) {
	repo, err := harness.RepoRoot()
	if err != nil {
		return "", err
	}
	busybox, err := harness.Busybox()
	if err != nil {
		return "", err
	}
	tree := filepath.Join(dir, "work")
	for _, d := range []string{"src", "tests", "cache/images"} {
		if err := os.MkdirAll(filepath.Join(tree, d), 0o755); err != nil {
			return "", err
		}
	}
	sources := exec.CommandContext(ctx, "sh", "-euc", `git -C "$1" ls-files -z --cached --others --exclude-standard | tar -C "$1" --null --ignore-failed-read -T - -c | tar -xC "$2"; cp -a "$1/bin" "$2/bin"`, "sh", repo, filepath.Join(tree, "src"))
	if err := run(sources); err != nil {
		return "", err
	}
	if err := copyFile("/bin/busybox", filepath.Join(tree, "busybox"), 0o755); err != nil {
		return "", err
	}
	containerd, err := harness.CurrentContainerd(ctx)
	if err != nil {
		return "", err
	}
	for _, entry := range []string{filepath.Dir(busybox.Tar), containerd} {
		if err := run(exec.CommandContext(ctx, "cp", "-a", entry, filepath.Join(tree, "cache/images", filepath.Base(entry)))); err != nil {
			return "", err
		}
	}
	for _, s := range suites {
		build := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-o", filepath.Join(tree, "tests", s.name()+".test"), "./"+s.dir)
		build.Dir, build.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
		if err := run(build); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(tree, "run.sh"), []byte(script(suites)), 0o755); err != nil {
		return "", err
	}
	disk := filepath.Join(dir, "work.ext4")
	return disk, run(exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-d", tree, disk, "1500M"))
}

// boot runs the machine until it turns itself off and returns what the tests wrote. The image's disk is not changed.
func boot(ctx context.Context, dir string, img image, work string) (results []byte, err error) {
	out := filepath.Join(dir, "results")
	console := filepath.Join(dir, "console")
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "file:"+console, "-serial", "file:"+out,
		"-kernel", img.kernel, "-initrd", img.initrd, "-append", "console=ttyS0 panic=-1 quiet systemd.show_status=0",
		"-drive", "file="+img.disk+",if=virtio,format=raw,snapshot=on", "-drive", "file="+work+",if=virtio,format=raw,cache=unsafe")
	runErr := run(cmd)
	if results, err = os.ReadFile(out); err != nil {
		return nil, err
	}
	results = bytes.ReplaceAll(results, []byte("\r\n"), []byte("\n"))
	if !bytes.Contains(results, []byte(sectionMark+"end\n")) {
		log, _ := os.ReadFile(console)
		return results, fmt.Errorf("the machine ended before its tests: %w\nconsole:\n%s\ntests:\n%s", runErr, lastOf(log), lastOf(results))
	}
	return results, nil
}

// run runs cmd and returns the end of its output as part of the error.
func run(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, lastOf(out))
	}
	return nil
}

func lastOf(b []byte) []byte { return b[max(0, len(b)-4000):] }

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = io.Copy(out, in)
	return err
}
