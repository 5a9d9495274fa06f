package conformance

import (
	"fmt"
	"strings"
)

// behaviour is what callers, the specification or other runtimes' bugs demand, and the tests that hold it.
type behaviour struct{ what, tests string }

// section is one part of the list.
type section struct {
	title string
	rows  []behaviour
}

// checklist names a test for every behaviour; a test of the repository's rules checks that each exists.
func checklist() []section {
	return []section{
		{"The command line that engines depend on", []behaviour{
			{"global flags, text and JSON logs, the last line of which is the error; the error on standard error, too", "integration/oci TestLog"},
			{"`--version`, `features`, `spec` as callers parse them", "integration/oci TestSpecFeaturesVersion"},
			{"exit statuses: 1, the process's own, 128 and the signal, 255 for a failed exec", "integration/oci TestRun, TestExec"},
			{"words that callers look for: container not running, does not exist, executable file not found in $PATH, permission denied", "integration/oci TestLifeCycle, TestUnknownContainer, TestBadSpec, TestExec"},
			{"create and run: bundle, pid file relative to the caller, detach, keep", "integration/oci TestLifeCycle, TestRun, TestExec"},
			{"console sockets of create and exec; terminal sizes; line ends", "integration/oci TestConsoleSocket, TestExec, TestPipeAsTerminal"},
			{"pidfd sockets of create and exec", "integration/oci TestPidfdSocket"},
			{"`--no-pivot`", "integration/attacks TestAttack_NoPivotChrootEscape"},
			{"`--no-new-keyring`", "integration/oci TestKeyring"},
			{"`--preserve-fds`; LISTEN_FDS", "integration/oci TestPreservedDescriptors, TestSocketActivation"},
			{"what conmon calls", "integration/podman TestRun, TestLife, TestCRIO, TestCRIORefusal"},
			{"exec: process file, directory, environment, user, groups, capabilities, no-new-privs, sub-cgroup, ignore-paused", "integration/oci TestExec, TestExecInSubCgroup, TestIgnorePaused"},
			{"kill: names, numbers, `--all`", "integration/oci TestKillForms"},
			{"delete by force, twice, of what never was", "integration/oci TestUnknownContainer, TestInitKilled"},
			{"list and ps, as table and JSON; state", "integration/oci TestListAndPs, TestLifeCycle"},
			{"events and statistics", "integration/oci TestEvents"},
			{"pause and resume", "integration/oci TestPause"},
			{"update by flags and by JSON", "integration/oci TestUpdate, TestUpdateFlags"},
			{"checkpoint and restore through CRIU, under the profile none; refused with the reason, or in CRIU's words (Debian's CRIU 3.17 knows nothing of the vDSO of Linux 6.18, and ends with that; on 6.1 it works, which integration/vm runs, but a restore into a cgroup that systemd makes is refused)", "integration/oci TestCheckpoint, TestCheckpoint_Refused"},
			{"HOME from the container's own accounts", "runtime/container TestHomeDirectory, TestEnvironmentAddsHome"},
			{"signals to the runtime reach the process, the Go runtime's own (SIGURG) does not", "integration/oci TestRun"},
		}},
		{"runtime-spec 1.3 and what came before", []behaviour{
			{"what does not fit, or this machine does not have, is refused by field; seccomp listeners", "integration/oci TestNotSupported, TestSeccompListener"},
			{"Intel RDT, where resctrl is mounted: classes by name and of the container's own, schemata, monitoring groups (tried on stand-ins for the kernel's files: the machine of the tests has no such processor)", "runtime/rdt TestPlan, TestNamedClass, TestOwnClass"},
			{"labels of processes, keyrings, mounts, message queues and masks, where SELinux is (what the kernel is told is tested, SELinux itself is not there); a label where it is not is refused", "runtime/container TestLabelMounts; runtime/initproc TestLabels"},
			{"memory policy, personality, CPU affinity of execs", "integration/oci TestMemoryPolicyAndAffinity"},
			{"pids.limit 0 and -1", "runtime/cgroup TestPlanKeepsRealLimits"},
			{"a failing poststart hook is an error; the order and state of all hooks", "integration/oci TestFailingHooks, TestHangingHook, TestHooks, TestHookNamespaces"},
			{"a cgroup that is in use is refused", "runtime/cgroup TestCreateRefusesUsedCgroup"},
			{"idmapped mounts; recursive attributes; relative destinations; options", "integration/oci TestIDMappedMount, TestRecursiveAttributes; fs/rootfs TestPlanMountsDestinations, TestPlanMountsOptions"},
			{"scheduler, I/O priority, domain name, time namespace", "integration/oci TestScheduling"},
			{"memory.checkBeforeUpdate, cpu.idle and burst, huge pages", "runtime/cgroup TestMemoryCheckBeforeUpdate, TestCreateWritesLimits, TestUnifiedLimits"},
			{"tmpcopyup", "integration/oci TestTmpfsCopyUp"},
			{"propagation of binds", "integration/oci TestPropagation; fs/rootfs TestPropagation"},
		}},
		{"Security fixes of others", []behaviour{
			{"each stands in [SECURITY.md](SECURITY.md) with its test", "integration/rules TestSecurityPage"},
			{"CVE-2023-25809: a writable cgroup tree without a cgroup namespace", "integration/profiles TestAttack_WritableSysfs"},
			{"CVE-2024-25621: state directories of others", "runtime/container TestStateModes"},
			{"CVE-2024-40635, CVE-2026-47262: ids that overflow, group files without end", "fs/image TestAttack_AccountFiles, FuzzAccounts"},
			{"CVE-2026-53488: labels of an image that become actions of the host", "runtime/container TestChoose_Tightens"},
			{"CVE-2025-47290: races while an image is unpacked", "fs/image TestAttack_LayerSymlinkParent"},
		}},
		{"Reported bugs of others", []behaviour{
			{"runc#5208: the exit of a quick exec", "integration/shim TestEventsOfShortLives, TestTwoHundredExecs"},
			{"runc#4971: the mode of a bare tmpfs", "integration/oci TestTmpfsMode"},
			{"runc#4543: parallel creates make the same directories", "integration/races TestManyIDs; integration/docker TestManyAtOnce"},
			{"runc#5151: init outlives create", "integration/oci TestLifeCycle"},
			{"runc#4534: killed during create", "integration/oci TestKilledDuringCreate; integration/attacks TestCrash_Kill; integration/races TestKillDuringCreate"},
			{"runc#4481: left frozen", "integration/oci TestPause; integration/races TestFreezeDuringExec"},
			{"runc#4814, runc#5023: CPU masks", "integration/oci TestCallersAffinity; runtime/container TestParseBits"},
			{"runc#5348: masks on old kernels", "integration/vm TestSystemdCgroupV2"},
			{"runc#5026: descriptors with many mounts and devices", "integration/oci TestManyMountsAndDevices, TestFewDescriptors"},
			{"runc#4556: /dev/net/tun", "integration/oci TestTunDevice"},
			{"crun#1838: bytes of a terminal are lost", "integration/shim TestTerminal, TestReaderThatStops"},
			{"crun#2097: idmapped binds leak to the host", "integration/oci TestIDMappedMount"},
			{"crun#2122: rslave and rshared", "integration/oci TestPropagation"},
			{"containerd#13849, #12344: shims that stay or go too early", "integration/shim TestSoak, TestKilledShimKeepsTheExit, TestCrash_Shim"},
			{"containerd#8893: the out-of-memory event before the exit", "integration/shim TestOOMComesBeforeTheExit"},
			{"youki#3553: a host name without its namespace", "integration/oci TestBadSpec"},
		}},
		{"Machines that lack something", []behaviour{
			{"system calls that a kernel does not have", "integration/kernels TestWithout, TestMemoryPolicyWithout"},
			{"another kernel, systemd, pure cgroup v2", "integration/vm TestSystemdCgroupV2"},
			{"many callers at once", "integration/races TestOneID, TestManyIDs, TestDeleteDuringExec, TestKillDuringCreate, TestFreezeDuringExec"},
			{"a crash at any step of create, start, exec, delete, checkpoint and restore, of CRIU, and of the shim", "integration/attacks TestCrash_Kill, TestCrash_Error, TestCrash_Criu; integration/shim TestCrash_Shim, TestError_Shim"},
		}},
	}
}

// checklistText is the list as the page has it.
func checklistText() string {
	var b strings.Builder
	b.WriteString("\n## What a runtime must not forget\n\nEach behaviour and the tests that hold it; most run the same under runc and compare.\n")
	for _, s := range checklist() {
		fmt.Fprintf(&b, "\n### %s\n\n| behaviour | tests |\n| --- | --- |\n", s.title)
		for _, r := range s.rows {
			fmt.Fprintf(&b, "| %s | %s |\n", r.what, r.tests)
		}
	}
	b.WriteString("\nNOTIFY_SOCKET is not handed into containers (runc proxies it): Podman brings a socket of its own.\n")
	return b.String()
}
