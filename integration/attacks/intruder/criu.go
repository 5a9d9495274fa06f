package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// criu stands in for CRIU as far as the runtime sees it: dump writes a file and ends the processes, restore makes a first
// process in namespaces of its own, in the container's cgroups, as a child of the caller, and writes its number. It dies at
// a step: first, image, made, number; or reports a failure at the last one: late.
func criu(step string, args []string) error {
	at := func(here string) {
		if step == here {
			unix.Kill(os.Getpid(), unix.SIGKILL) //nolint:errcheck // there is no way back from it
		}
	}
	at("first")
	option := func(name string) (values []string) {
		for i := 1; i < len(args); i++ {
			if args[i-1] == name {
				values = append(values, args[i])
			}
		}
		return values
	}
	if len(args) == 0 || len(option("--images-dir")) != 1 || len(option("--work-dir")) != 1 {
		return fmt.Errorf("arguments %q", args)
	}
	image := filepath.Join(option("--images-dir")[0], "pages-1.img")
	switch args[0] {
	case "dump":
		if err := os.WriteFile(image, []byte("pages"), 0o600); err != nil {
			return err
		}
		at("image")
		pid, err := strconv.Atoi(option("--tree")[0])
		if err != nil {
			return err
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return err
		}
	case "restore":
		if _, err := os.Stat(image); err != nil {
			return err
		}
		pid, err := sibling()
		if err != nil {
			return err
		}
		for _, root := range option("--cgroup-root") { // where the hierarchies are not unified
			name, below, _ := strings.Cut(root, ":")
			err := os.WriteFile(filepath.Join("/sys/fs/cgroup", name, below, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		at("made")
		if err := os.WriteFile(filepath.Join(option("--work-dir")[0], option("--pidfile")[0]), []byte(strconv.Itoa(pid)), 0o600); err != nil {
			return err
		}
		at("number")
	}
	if step == "late" {
		return errors.New("at the end")
	}
	return nil
}

// sibling starts a process that is the parent's child.
func sibling() (int, error) {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP | unix.CLONE_PARENT,
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}
