package container

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/replace"
)

// WritePidFile writes the first process's pid to a file, atomically; "" writes none.
func (c *Container) WritePidFile(name string) error { return writePidFile(name, c.state.InitPID) }

// writePidFile writes the pid file, last of all: containerd takes its presence as the end of create.
func writePidFile(name string, pid int) error {
	if name == "" {
		return nil
	}
	dir, err := os.OpenFile(filepath.Dir(name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open directory of pid file: %w", err)
	}
	defer dir.Close()
	return replace.File(dir, filepath.Base(name), []byte(strconv.Itoa(pid)), 0o666)
}

// ActivationEnv is the environment of a process that is handed n descriptors by socket activation; in a pid namespace of
// its own the first process is number 1. Source: sd_listen_fds(3).
func ActivationEnv(n int) []string { return []string{"LISTEN_FDS=" + strconv.Itoa(n), "LISTEN_PID=1"} }
