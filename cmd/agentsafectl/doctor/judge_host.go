package doctor

import (
	"fmt"
	"slices"
	"strings"
)

func judgeUserNS(f *Facts) Row {
	row := Row{Check: "user namespaces", Status: OK, Detail: "available"}
	switch {
	case f.UserNSErr != "":
		row.Status, row.Detail = Degraded, f.UserNSErr+": containers with mapped ids are refused"
		if f.UserNSMax == 0 {
			row.Advice = "sysctl user.max_user_namespaces=15000"
		}
	case !f.UserNSForAll:
		row.Detail = "for root only"
	}
	if f.SubIDs {
		row.Detail += "; subordinate ids for this user"
	} else {
		row.Detail += "; no subordinate ids for this user in /etc/subuid"
	}
	return row
}

// judgeRootless says what an ordinary user can do here.
func judgeRootless(f *Facts) Row {
	row := Row{Check: "without root", Status: OK}
	if f.UserNSErr != "" || !f.UserNSForAll {
		row.Status, row.Detail = Missing, "ordinary users can't run containers: no user namespaces for them"
		return row
	}
	switch {
	case f.SubIDs && f.Mappers:
		row.Detail = "ids of several users"
	case f.SubIDs:
		row.Detail = "one id: newuidmap and newgidmap are missing"
		row.Advice = "apt install uidmap, for images with several users and rootless Podman"
	default:
		row.Detail = "one id"
	}
	if f.OverlayUserErr != "" {
		row.Status = Degraded
		row.Detail += "; no overlaid workspaces"
	}
	if f.UID == 0 {
		row.Detail += "; limits where cgroups are delegated"
		return row
	}
	var lacking []string
	for _, c := range []string{"memory", "cpu", "pids"} {
		if !slices.Contains(f.Delegated, c) {
			lacking = append(lacking, c)
		}
	}
	if len(lacking) > 0 {
		row.Status = Degraded
		row.Detail += "; no cgroup is delegated for " + strings.Join(lacking, ", ") + ": profiles that limit these are refused"
		row.Advice = "systemd-run --user --scope -p Delegate=yes agentsafectl ..., on cgroup v2"
	}
	return row
}

func judgeNFTables(f *Facts) Row {
	row := Row{Check: "nftables", Status: OK, Required: true, Detail: "rules accepted in a network namespace of their own"}
	switch {
	case f.NFTablesErr == "":
	case f.UID != 0:
		row.Status, row.Detail = Degraded, "not told without root: "+f.NFTablesErr
	default:
		row.Status, row.Detail = Missing, f.NFTablesErr
		row.Advice = "build the kernel with CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET, or load nf_tables: without it metadata addresses can't be made unreachable"
	}
	return row
}

func judgeOverlay(f *Facts) Row {
	row := Row{Check: "overlayfs", Status: OK, Detail: "mounts"}
	if f.OverlayErr != "" {
		row.Status, row.Detail = Degraded, f.OverlayErr+": --image and --rootfs can't be used"
		row.Advice = "load the overlay module, or build the kernel with CONFIG_OVERLAY_FS"
		return row
	}
	if f.OverlayUserErr == "" {
		row.Detail += "; also in user namespaces (userxattr)"
	} else {
		row.Detail += "; not in user namespaces: " + f.OverlayUserErr
	}
	return row
}

func judgeLSM(f *Facts) Row {
	row := Row{Check: "security modules", Status: OK, Detail: strings.Join(f.LSMs, " ")}
	if len(f.LSMs) == 0 {
		row.Detail = "list not readable (securityfs is not mounted)"
	}
	switch {
	case f.AppArmor:
		row.Detail += "; AppArmor on: labels that an engine asks for are applied"
	case f.SELinux:
		row.Detail += "; SELinux on: labels that an engine asks for are applied"
	default:
		row.Detail += "; neither AppArmor nor SELinux: not needed, a request for a label is an error"
	}
	return row
}

func judgeCore(f *Facts) Row {
	row := Row{Check: "core dumps", Status: OK, Detail: "stay in the container"}
	if f.CoreToProgram != "" {
		row.Status = Degraded
		row.Detail = "core_pattern hands the memory of crashed tasks to " + f.CoreToProgram + " on the host"
		row.Advice = "sysctl kernel.core_pattern=core, or be sure that this program takes hostile input"
	}
	return row
}

func judgeConfig(c HostConfigFacts) Row {
	row := Row{Check: "configuration", Status: OK, Detail: "default profile agent"}
	if c.Default != "" {
		row.Detail = "default profile " + c.Default
	}
	if len(c.Handlers) > 0 {
		row.Detail += "; " + strings.Join(c.Handlers, " ")
	}
	switch {
	case c.Err != "":
		row.Status, row.Detail = Degraded, c.Err
		row.Advice = "until it is right, new containers are refused"
	case len(c.WarnOnly) > 0:
		row.Status = Degraded
		row.Detail += "; NOT ENFORCED, warns only: " + strings.Join(c.WarnOnly, " ")
		row.Advice = "remove `enforcement = \"warn\"` from /etc/agentsafe/config.toml once nothing is logged that has to work, and run `agentsafectl config apply`"
	}
	return row
}

func judgePrograms(f *Facts) []Row {
	var out []Row
	for _, p := range []struct {
		name, why string
		required  bool
	}{
		{"agentsafe", "the runtime that engines call", false},
		{"agentsafe-seccomp", "compiles the profile's system call filter", true},
	} {
		row := Row{Check: p.name, Status: OK, Required: p.required, Detail: f.Programs[p.name]}
		if row.Detail == "" {
			row.Status, row.Detail = Missing, "not found: "+p.why
			row.Advice = "make install, or put it beside agentsafectl"
		}
		out = append(out, row)
	}
	return out
}

// lowSpaceBytes is where images and layers get tight.
const lowSpaceBytes = 1 << 30

func judgeDir(d DirFacts, uid int) Row {
	row := Row{Check: d.Name, Status: OK, Required: true, Detail: d.Path}
	switch {
	case d.Err != "":
		row.Status, row.Detail = Missing, d.Path+": "+d.Err
		row.Advice = "make the directory usable for you, or name another one"
	case !d.Exists:
		row.Detail += ": will be made"
	case int(d.UID) != uid || d.Mode&0o022 != 0:
		// Whoever can write there decides what later runs believe.
		row.Status = Missing
		row.Detail += fmt.Sprintf(": owner %d, mode %04o", d.UID, d.Mode)
		row.Advice = fmt.Sprintf("chown %d and chmod go-w %s", uid, d.Path)
	case d.FreeBytes < lowSpaceBytes:
		row.Status = Degraded
		row.Detail += fmt.Sprintf(": %d MiB free", d.FreeBytes>>20)
	}
	return row
}

func judgeEngine(e EngineFacts, binary string) Row {
	row := Row{Check: e.Name, Status: OK}
	if e.Version == "" {
		row.Status, row.Detail = Missing, "not installed (agentsafectl run needs no engine)"
		return row
	}
	row.Detail = e.Version
	if binary == "" {
		binary = "/usr/local/bin/agentsafe"
	}
	switch {
	case e.ConfigErr != "":
		row.Status, row.Detail = Degraded, row.Detail+"; "+e.ConfigPath+": "+e.ConfigErr
	case e.Registered:
		row.Detail += "; agentsafe is registered in " + e.ConfigPath
	default:
		row.Status, row.Detail = Degraded, row.Detail+"; agentsafe is not registered"
		row.Advice = registration(e, binary)
	}
	return row
}

// registration says what to write where. Engines that can use the shim are told to: it costs them no runtime program
// for each operation.
func registration(e EngineFacts, binary string) string {
	path := e.ConfigPath
	const inPath = "containerd-shim-agentsafe-v2 has to be in containerd's PATH"
	switch e.Name {
	case "docker":
		if majorVersion(e.Version) >= dockerWithShims {
			return fmt.Sprintf(`in %s: {"runtimes": {"agentsafe": {"runtimeType": %q}}}, then reload dockerd; %s`, path, shimType, inPath)
		}
		return fmt.Sprintf(`in %s: {"runtimes": {"agentsafe": {"path": %q}}}, then reload dockerd`, path, binary)
	case "podman":
		return fmt.Sprintf("in %s, under [engine.runtimes]: agentsafe = [%q]; or podman --runtime %s", path, binary, binary)
	case "containerd":
		return fmt.Sprintf("in %s, a runtime \"agentsafe\" with runtime_type = %q; %s", path, shimType, inPath)
	default:
		return fmt.Sprintf("in %s: [crio.runtime.runtimes.agentsafe] runtime_path = %q", path, binary)
	}
}

// dockerWithShims is the first Docker whose daemon.json takes a runtimeType.
const dockerWithShims = 23

// majorVersion is the first number in the text of --version, 0 if there is none.
func majorVersion(text string) int {
	i := strings.IndexAny(text, "0123456789")
	if i < 0 {
		return 0
	}
	n := 0
	for _, c := range text[i:] {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}
