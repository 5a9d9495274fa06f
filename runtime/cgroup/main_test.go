package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// testParent is the one cgroup below which every test works.
var testParent = "/agentsafe-cgroup-test-" + strconv.Itoa(os.Getpid())

//go:fix inline
func ptr[T any](v T) *T { return new(v) }

// TestMain checks that the tests leave no cgroup and no process behind. As a re-exec'd child it plays a role instead.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if code, done := playRole(role); done {
			os.Exit(code)
		}
	}
	code := m.Run()
	if err := checkClean(); err != nil {
		fmt.Fprintln(os.Stderr, "left behind:", err)
		code = 1
	}
	os.Exit(code)
}

func checkClean() error {
	for _, pattern := range []string{mountRoot + testParent + "*", mountRoot + "/*" + testParent + "*"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		if len(dirs) > 0 {
			return fmt.Errorf("cgroups %v", dirs)
		}
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err == nil {
		return fmt.Errorf("child process (%d)", pid)
	}
	return nil
}
