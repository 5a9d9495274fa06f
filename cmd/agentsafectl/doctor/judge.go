package doctor

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Judge turns facts into a report. It makes no system call.
func Judge(f *Facts) *Report {
	r := &Report{Kernel: f.Release}
	r.Rows = append(r.Rows,
		judgeKernel(f), judgePrivileges(f), judgeLandlock(f), judgeSeccomp(f), judgeCgroups(f), judgeCloneInto(f),
		judgeSyscalls(f, "path resolution", "openat2", "openat2"),
		judgeSyscalls(f, "mount API", "open_tree, move_mount, fsopen, fsconfig, fsmount, mount_setattr",
			"open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "mount_setattr"),
		judgeSyscalls(f, "pidfd", "pidfd_open, pidfd_send_signal", "pidfd_open", "pidfd_send_signal"),
		judgeSyscalls(f, "clone3", "clone3, close_range", "clone3", "close_range"),
		judgeMemfd(f), judgeNamespaces(f), judgeUserNS(f), judgeRootless(f), judgeNFTables(f), judgeOverlay(f), judgeLSM(f), judgeCore(f))
	r.Rows = append(r.Rows, judgeConfig(f.Config))
	r.Rows = append(r.Rows, judgePrograms(f)...)
	for _, d := range f.Dirs {
		r.Rows = append(r.Rows, judgeDir(d, f.UID))
	}
	for _, e := range f.Engines {
		r.Rows = append(r.Rows, judgeEngine(e, f.Programs["agentsafe"]))
	}
	r.Enforceable = !slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Required && row.Status == Missing })
	return r
}

func judgeKernel(f *Facts) Row {
	row := Row{Check: "kernel", Status: OK, Required: true, Detail: "Linux " + f.Release + " " + f.Machine}
	major, minor, err := kernelVersion(f.Release)
	switch {
	case err != nil:
		row.Status, row.Detail = Degraded, row.Detail+": version not understood"
	case major < 5 || major == 5 && minor < 15:
		row.Status, row.Advice = Missing, "agentsafe needs Linux 5.15 or newer"
	}
	if f.Machine != "amd64" && f.Machine != "arm64" {
		row.Status, row.Advice = Missing, "agentsafe knows the system calls of amd64 and arm64 only"
	}
	return row
}

// kernelVersion reads the first two numbers of a release.
func kernelVersion(release string) (major, minor int, err error) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return 0, 0, fmt.Errorf("kernel release %q", release)
	}
	if major, err = strconv.Atoi(parts[0]); err != nil {
		return 0, 0, err
	}
	digits := strings.IndexFunc(parts[1], func(c rune) bool { return c < '0' || c > '9' })
	if digits < 0 {
		digits = len(parts[1])
	}
	minor, err = strconv.Atoi(parts[1][:digits])
	return major, minor, err
}

// neededCaps are the capabilities that making a container takes, by number.
func neededCaps() map[int]string {
	return map[int]string{
		0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 5: "KILL", 6: "SETGID", 7: "SETUID", 8: "SETPCAP",
		12: "NET_ADMIN", 18: "SYS_CHROOT", 19: "SYS_PTRACE", 21: "SYS_ADMIN", 27: "MKNOD",
	}
}

const capSysResource = 24

func judgePrivileges(f *Facts) Row {
	row := Row{Check: "privileges", Status: OK, Required: true, Detail: fmt.Sprintf("uid %d", f.UID)}
	if f.UID != 0 {
		row.Detail += ": containers are made in a user namespace of this user's; some rows can't be told without root"
		if f.UserNSErr != "" {
			row.Status, row.Advice = Missing, "see the row user namespaces, or run as root"
		}
		return row
	}
	var lacking []string
	for bit, name := range neededCaps() {
		if f.CapsEff&(1<<bit) == 0 {
			lacking = append(lacking, name)
		}
	}
	sort.Strings(lacking)
	switch {
	case len(lacking) > 0:
		row.Status, row.Detail = Missing, row.Detail+" without "+strings.Join(lacking, ", ")
		row.Advice = "run agentsafe outside of the container or sandbox that took these capabilities away"
	case f.CapsEff&(1<<capSysResource) == 0:
		row.Status = Degraded
		row.Detail += " without SYS_RESOURCE: negative OOM scores and limits above the hard ones are refused"
	}
	return row
}

func judgeLandlock(f *Facts) Row {
	row := Row{Check: "landlock", Status: OK, Required: true, Detail: fmt.Sprintf("ABI %d", f.LandlockABI)}
	if f.LandlockABI < 1 {
		row.Status, row.Detail = Missing, f.LandlockErr
		row.Advice = "build the kernel with CONFIG_SECURITY_LANDLOCK (5.13) and name landlock in the lsm= boot parameter"
		return row
	}
	lacks := []struct {
		abi  int
		what string
	}{
		{2, "moves between directories are always refused (2: Linux 5.19)"},
		{3, "truncation can't be refused (3: 6.2)"},
		{4, "no TCP rules (4: 6.7)"},
		{5, "no rules for device ioctls (5: 6.10)"},
		{6, "no scopes for signals and abstract sockets (6: 6.12)"},
		{7, "refusals are not in the audit log as ours (7: 6.15)"},
	}
	var missing []string
	for _, l := range lacks {
		if f.LandlockABI < l.abi {
			missing = append(missing, l.what)
		}
	}
	if len(missing) > 0 {
		row.Detail += ": " + strings.Join(missing, "; ")
		if f.LandlockABI < 3 {
			row.Status, row.Advice = Degraded, "a newer kernel; until then seccomp and mounts are the stronger half"
		}
	}
	return row
}

func judgeSeccomp(f *Facts) Row {
	row := Row{Check: "seccomp", Status: OK, Required: true, Detail: "filter"}
	if !f.SeccompFilter || !slices.Contains(f.SeccompActions, "errno") {
		row.Status, row.Detail = Missing, "no filters"
		row.Advice = "build the kernel with CONFIG_SECCOMP_FILTER"
		return row
	}
	row.Detail += ": " + strings.Join(f.SeccompActions, " ")
	if !slices.Contains(f.SeccompActions, "user_notif") {
		row.Status = Degraded
		row.Detail += "; no user notification (5.0)"
	}
	if f.SeccompWaitKillErr != "" {
		row.Detail += "; no WAIT_KILLABLE_RECV (5.19)"
	} else {
		row.Detail += "; WAIT_KILLABLE_RECV"
	}
	return row
}

func judgeCgroups(f *Facts) Row {
	c := f.Cgroup
	row := Row{Check: "cgroups", Status: OK, Required: true, Detail: c.Mode + ": " + strings.Join(c.Controllers, " ")}
	if c.Systemd {
		row.Detail += "; systemd"
	}
	wanted := []string{"memory", "pids", "cpu"}
	if c.Mode != "unified" {
		wanted = append(wanted, "devices", "freezer")
	}
	var lacking []string
	for _, w := range wanted {
		if !slices.Contains(c.Controllers, w) {
			lacking = append(lacking, w)
		}
	}
	switch {
	case c.Mode == "none":
		row.Status, row.Detail = Missing, "none mounted"
		row.Advice = "mount cgroup2 at /sys/fs/cgroup"
	case !c.Writable && f.UID == 0:
		row.Status, row.Detail = Missing, row.Detail+"; read-only here"
		row.Advice = "run agentsafe where it may make cgroups"
	case len(lacking) > 0:
		row.Status, row.Detail = Degraded, row.Detail+"; without "+strings.Join(lacking, ", ")
		row.Advice = "enable these controllers: limits that need them are refused"
	case !c.Writable:
		row.Status, row.Detail = Degraded, row.Detail+"; not delegated to this user"
		row.Advice = "delegate them: `Delegate=yes` in user@.service (cpu, memory, pids)"
	}
	return row
}

func judgeCloneInto(f *Facts) Row {
	row := Row{Check: "start in cgroup", Status: OK, Detail: "clone3 into a cgroup v2"}
	switch {
	case f.Cgroup.Mode != "unified":
		row.Detail = "v1: processes are moved before they run anything"
	case f.Cgroup.IntoErr != "":
		row.Status, row.Detail = Degraded, f.Cgroup.IntoErr
	}
	if f.Cgroup.Mode == "unified" && !f.Cgroup.Kill {
		row.Status, row.Detail = Degraded, row.Detail+"; no cgroup.kill (5.14): freeze and signal instead"
	}
	return row
}

// judgeSyscalls is a row about system calls that are all required.
func judgeSyscalls(f *Facts, check, detail string, names ...string) Row {
	row := Row{Check: check, Status: OK, Required: true, Detail: detail}
	var bad []string
	for _, n := range names {
		if err, known := f.Syscalls[n]; !known || err != "" {
			bad = append(bad, n+": "+err)
		}
	}
	if len(bad) > 0 {
		row.Status, row.Detail = Missing, strings.Join(bad, "; ")
		row.Advice = "a kernel of at least 5.15; in a container or sandbox, a seccomp policy that allows them"
	}
	return row
}

func judgeMemfd(f *Facts) Row {
	row := Row{Check: "sealed memfd", Status: OK, Required: true, Detail: "the program that starts in containers can't be overwritten"}
	switch {
	case f.MemfdErr != "":
		row.Status, row.Detail = Missing, f.MemfdErr
		if f.MemfdNoExec >= 2 {
			row.Advice = "sysctl vm.memfd_noexec=1 (2 forbids executable memfds altogether)"
		}
	case f.MemfdNoExec > 0:
		row.Detail += fmt.Sprintf("; vm.memfd_noexec=%d", f.MemfdNoExec)
	}
	return row
}

func judgeNamespaces(f *Facts) Row {
	row := Row{Check: "namespaces", Status: OK, Required: true, Detail: strings.Join(f.Namespaces, " ")}
	var lacking []string
	for _, n := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		if !slices.Contains(f.Namespaces, n) {
			lacking = append(lacking, n)
		}
	}
	switch {
	case len(lacking) > 0:
		row.Status, row.Detail = Missing, "without "+strings.Join(lacking, ", ")
		row.Advice = "build the kernel with these namespaces"
	case !slices.Contains(f.Namespaces, "time"):
		row.Status, row.Detail = Degraded, row.Detail+"; no time namespace (5.6)"
	}
	return row
}
