package container

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// planInit collects what the child is given: descriptors, and its program's input.
func (cr *creation) planInit() (*initproc.Create, *initproc.Donation, error) {
	don := &initproc.Donation{}
	if err := cr.donateStdio(don); err != nil {
		return nil, nil, err
	}
	for _, f := range cr.o.ExtraFiles {
		don.Add(f)
	}
	process, err := planProcess(cr.spec.Process, cr.root.Tree)
	if err != nil {
		return nil, nil, err
	}
	process.PreserveFDs, process.NullStdio, process.PipeStdio = len(cr.o.ExtraFiles), cr.stdio.nulls, cr.stdio.pipes
	process.ConsoleFD = don.Add(cr.o.ConsoleSocket)
	cr.policy.apply(&process)
	if l := cr.policy.Listener; l != nil {
		conn, err := l.donate(&process, don, cr.c.processState(StatusCreating))
		if err != nil {
			return nil, nil, err
		}
		cr.opened = append(cr.opened, conn)
	}
	if cr.c.detail.Domain, err = planDomain(cr.spec.Linux); err != nil {
		return nil, nil, err
	}
	cr.c.detail.Domain.apply(&process)
	in := &initproc.Create{
		Process: process, ListenFD: initproc.None, RootFD: don.Add(cr.root.Tree), RootPath: cr.root.Path,
		NewCgroupNS: cr.ns.cgroupNS, NewTimeNS: cr.ns.timeNS, TimeOffsets: cr.ns.offsets,
		SetRootIDs: cr.ns.joined[specs.UserNamespace] != nil, Unshare: int(cr.ns.unshare), //nolint:gosec // flags
		Hostname: cr.spec.Hostname, Domainname: cr.spec.Domainname,
		MaskedPaths: cr.spec.Linux.MaskedPaths, ReadonlyPaths: cr.spec.Linux.ReadonlyPaths,
		ReadonlyRoot: cr.spec.Root.Readonly, NoPivot: cr.o.NoPivot, NullFD: initproc.None,
		HookPoint: hasEarlyHooks(cr.spec.Hooks), HostMounts: cr.c.state.HostMounts,
	}
	in.Join = cr.ns.joins(don)
	if in.Propagation, in.PropagationRec, err = rootfs.Propagation(cr.spec.Linux.RootfsPropagation); err != nil {
		return nil, nil, err
	}
	if !cr.o.NoNewKeyring {
		in.Keyring = "_ses." + cr.o.ID
	}
	if in.Sysctls, err = planSysctls(cr.spec.Linux.Sysctl, cr.ns.hostNamespaces()); err != nil {
		return nil, nil, err
	}
	if (in.Hostname != "" || in.Domainname != "") && cr.ns.hostNamespaces()[specs.UTSNamespace] {
		return nil, nil, invalid("hostname", "would be the host's: the uts namespace is joined by path and is the host's own")
	}
	if err := cr.donateFiles(in, don); err != nil {
		return nil, nil, err
	}
	in.Held = cr.o.Held
	if !cr.attached() {
		listen, err := initproc.Listen(cr.c.dir, startSocket)
		if err != nil {
			return nil, nil, err
		}
		cr.opened = append(cr.opened, listen)
		in.ListenFD = don.Add(listen)
	}
	return in, don, nil
}

func (cr *creation) donateStdio(don *initproc.Donation) error {
	stdout, stderr := cr.o.Stdout, cr.o.Stderr
	var uids, gids []specs.LinuxIDMapping
	if cr.spec.Linux != nil {
		uids, gids = cr.spec.Linux.UIDMappings, cr.spec.Linux.GIDMappings
	}
	user := &cr.spec.Process.User
	var err error
	cr.outputs, cr.ends, err = interpose(cr.policy.Profile, cr.spec.Process.Terminal, hostID(user.UID, uids), hostID(user.GID, gids), &stdout, &stderr)
	if err != nil {
		return err
	}
	return cr.stdio.donate(don, cr.o.Stdin, stdout, stderr)
}

// donateFiles hands over mounts, devices and the source of masks.
func (cr *creation) donateFiles(in *initproc.Create, don *initproc.Donation) error {
	plan, src, err := cr.expandCgroupMounts()
	if err != nil {
		return err
	}
	if label := cr.spec.Linux.MountLabel; label != "" && selinux() {
		labelMounts(plan, src, label)
		in.MountLabel = label
	}
	if in.Mounts, err = donateMounts(plan, src, cr.root.Tree, don, &cr.opened); err != nil {
		return err
	}
	if cr.policy.Profile.Unrestricted {
		reopenSources(in.Mounts, src)
	}
	in.Sealed = cr.sealed
	if ownsDev(plan) {
		if in.Devices, err = planDevices(cr.spec.Linux.Devices); err != nil {
			return err
		}
		in.DevLinks = true
		in.KcoreLink = unix.Access("/proc/kcore", unix.F_OK) == nil
		if cr.c.state.UserNS || rootfs.InUserNamespace() {
			if in.Devices, err = bindDevices(in.Devices, don, &cr.opened); err != nil {
				return err
			}
		}
	}
	if len(in.MaskedPaths) > 0 {
		null, err := rootfs.OpenDevice(os.DevNull, 1, 3)
		if err != nil {
			return err
		}
		cr.opened = append(cr.opened, null)
		in.NullFD = don.Add(null)
	}
	return nil
}

// planSysctls checks linux.sysctl: only parameters of namespaces that are not the host's, spelled as paths without
// escapes (CVE-2022-0811: "+" smuggled a second parameter into another runtime). A namespace that is joined by path may
// be the host's (TestAttack_HostNamespaceByPath).
func planSysctls(in map[string]string, host map[specs.LinuxNamespaceType]bool) ([]initproc.Sysctl, error) {
	var out []initproc.Sysctl
	for _, key := range slices.Sorted(maps.Keys(in)) {
		value := in[key]
		field := "linux.sysctl " + key
		path := strings.ReplaceAll(key, ".", "/")
		if strings.Contains(key, "/") {
			path = key
		}
		if filepath.Clean("/"+path) != "/"+path || strings.ContainsAny(path, "+\x00\n") {
			return nil, invalid(field, "is not a parameter's name")
		}
		need, ok := sysctlNamespace(path)
		switch {
		case !ok:
			return nil, invalid(field, "is not separate for each namespace, so a container can't set it")
		case host[need]:
			return nil, invalid(field, fmt.Sprintf("needs a %s namespace of the container's own", need))
		}
		out = append(out, initproc.Sysctl{Key: path, Value: value})
	}
	return out, nil
}

func sysctlNamespace(path string) (specs.LinuxNamespaceType, bool) {
	switch path {
	case "kernel/msgmax", "kernel/msgmnb", "kernel/msgmni", "kernel/sem", "kernel/shmall", "kernel/shmmax",
		"kernel/shmmni", "kernel/shm_rmid_forced":
		return specs.IPCNamespace, true
	case "kernel/domainname", "kernel/hostname":
		return specs.UTSNamespace, true
	}
	switch {
	case strings.HasPrefix(path, "fs/mqueue/"):
		return specs.IPCNamespace, true
	case strings.HasPrefix(path, "net/"):
		return specs.NetworkNamespace, true
	}
	return "", false
}

func planPersonality(in *specs.LinuxPersonality) *uint64 {
	if in == nil {
		return nil
	}
	var v uint64
	if in.Domain == specs.PerLinux32 {
		v = 8
	}
	return &v
}
