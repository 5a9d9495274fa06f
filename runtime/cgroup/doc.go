// Package cgroup puts a container into control groups: it plans them from an OCI configuration, creates them with their
// limits, places processes, measures, freezes, kills and removes them. It is the only code of agentsafe that writes to a
// cgroup file system.
//
// # Data in, data out
//
// [Plan] is pure: OCI resources and cgroupsPath plus a [Host] (what [ReadHost] found mounted) become a [Config].
// [Create] applies a Config and returns a [Group]. [Group.State] is plain data for the runtime's state file, and [Load]
// turns it back into a Group in another process. [Open] names the cgroups of a Config without creating anything: that is
// how a clean-up finds them after a crash.
//
// # Order of use
//
//	cfg, err := cgroup.Plan(in)
//	g, err := cgroup.Create(cfg)    // directories and limits; no process needed
//	dir, err := g.Dir()             // cgroup v2: clone3(CLONE_INTO_CGROUP) into it
//	err = g.Add(pid)                // otherwise: before the process may run anything of the image's
//	...
//	err = g.Kill(ctx); err = g.Destroy()
//
// Limits are written before the first process is placed: a memory limit that follows its process may be below what it
// already uses, a cpuset without processors takes no process, and realtime bandwidth must exist before a realtime task
// moves in. Among the v1 hierarchies there is no order, because the process waits until it is in all of them.
//
// The systemd driver can't create a scope without a process. There Create only plans, the first Add starts the unit and
// applies the limits, and State is to be taken after it.
//
// # Default path
//
// Without a cgroupsPath the cgroup is agentsafe-ID beneath the caller's own cgroup (cgroup v2: beside it, because a v2
// cgroup with processes can't pass on controllers). runc uses the bare ID there; the prefix keeps a container named
// "docker" from taking over, and at its deletion killing, everybody's /docker. With the systemd driver the unit is
// agentsafe-ID.scope in system.slice (rootless: user.slice).
//
// # Which v1 hierarchies
//
// All that are mounted, name=systemd and the hybrid unified one included, as engines read them (docker stats, the shim's
// metrics). The one exception is cpuset: where the configuration sets no cpus or mems, and no ancestor of the cgroup
// exists in that hierarchy, there is nothing to inherit or to limit, and the first cpuset of a host costs about 2 ms of
// code patching (cpusets_enabled_key). It is created by [Group.Set] when an update first asks for it.
//
// # What it refuses
//
// Paths with "..", the root cgroup, a cgroup that holds processes or is frozen; limits that the kernel can't hold, with
// the field's name; controllers that are not mounted or not delegated ([ErrUnsupported]); device rules that can't be
// enforced as written, such as a hole in a wildcard. Nothing is dropped silently but what the kernel itself no longer
// has: kernel memory limits, and swappiness and disableOOMKiller on v2, as in runc.
//
// Systemd properties by annotation (org.systemd.property.*) are not carried: they come from whoever writes the pod.
//
// # Minimum kernel
//
// Linux 5.15: cgroup.kill, cgroup.freeze, pidfds and BPF device filters are there. v1, hybrid and v2; on a hybrid host
// cgroup.kill of the unified hierarchy is used too.
//
// # Built on
//
// github.com/opencontainers/cgroups writes limits, reads statistics and speaks to systemd. Not used of it, and why:
// manager.New and Apply (mount discovery by parsing mountinfo and symlinks: 4 ms of a 9 ms start), and the devices
// package (it links go/parser and debug/dwarf through cilium/ebpf: a tenth of the program's start-up). Device rules are
// compiled here, once, for v1, v2 and systemd, and handed to the library through its hooks.
package cgroup
