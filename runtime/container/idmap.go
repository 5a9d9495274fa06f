package container

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/runtime/entry"
)

// idmapSources maps the owners of the bind mounts that ask for it. The sources are detached copies, so that the mounts
// they were copied from keep their owners (crun#2097). Source: runtime-spec 1.3.0, config.md "Linux mount options",
// idmap and ridmap; mount_setattr(2), Linux 5.12.
func (cr *creation) idmapSources() error {
	for i := range cr.plan {
		m := &cr.plan[i]
		if !m.IDMap {
			continue
		}
		ns, err := cr.mountNamespaceOfIDs(m)
		if err == nil {
			err = setIDMap(cr.src[i].Tree, ns, m.IDMapRec)
			ns.Close()
		}
		if err != nil {
			return fmt.Errorf("mounts[%d] (idmapped, destination %q): %w", i, m.Destination, err)
		}
	}
	return nil
}

// mountNamespaceOfIDs returns a user namespace with the mappings of the mount, or else the container's. The caller closes
// it.
func (cr *creation) mountNamespaceOfIDs(m *rootfs.Mount) (*os.File, error) {
	uids, gids := m.UIDMappings, m.GIDMappings
	if len(uids) == 0 && len(gids) == 0 {
		if joined := cr.ns.joined[specs.UserNamespace]; joined != nil {
			fd, err := unix.FcntlInt(joined.Fd(), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				return nil, fmt.Errorf("duplicate user namespace: %w", err)
			}
			return os.NewFile(uintptr(fd), "userns"), nil
		}
		if !cr.ns.own[specs.UserNamespace] {
			return nil, errors.New("there are no mappings, neither of the mount nor of a user namespace of the container's")
		}
		return NewUserNamespace(cr.ns.uid, cr.ns.gid)
	}
	uid, err := idMap("uidMappings", uids)
	if err != nil {
		return nil, err
	}
	gid, err := idMap("gidMappings", gids)
	if err != nil {
		return nil, err
	}
	return NewUserNamespace(uid, gid)
}

// NewUserNamespace makes a user namespace with these mappings, which lives as long as the result is open. Its only
// process stops before it executes anything, and is ended. The caller closes it.
func NewUserNamespace(uid, gid []syscall.SysProcIDMap) (*os.File, error) {
	// The tracer is a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	entry.Restore()
	proc, err := os.StartProcess("/proc/self/exe", []string{"agentsafe:userns"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: uid, GidMappings: gid, GidMappingsEnableSetgroups: true,
			Ptrace: true, Pdeathsig: unix.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	defer func() {
		proc.Kill() //nolint:errcheck // gone is what we want
		proc.Wait() //nolint:errcheck // likewise
	}()
	return openNamespace("/proc/"+strconv.Itoa(proc.Pid)+"/ns/user", unix.CLONE_NEWUSER)
}

func setIDMap(tree, ns *os.File, recursive bool) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	err := unix.MountSetattr(int(tree.Fd()), "", flags, attr)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("map owners: the file system can't (proc, sysfs, some network file systems), or is mapped already: %w", err)
	}
	if err != nil {
		return fmt.Errorf("map owners: %w", err)
	}
	return nil
}
