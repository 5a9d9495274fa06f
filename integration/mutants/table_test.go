package mutants

import "slices"

// mutant is a defence that is taken out, and the attack that must then succeed.
type mutant struct {
	defence   string
	file      string // of the repository
	old, text string // what is exchanged, and for what
	test      string
	pkg       string    // the test's, "" for integration/attacks
	more      [2]string // exchanged as well, "" for nothing
}

// mutants lists them all.
func mutants() []mutant {
	return slices.Concat(initMutants(), hostMutants(), policyMutants(), otherMutants())
}

// initMutants are of what the container's first process does.
func initMutants() []mutant {
	return []mutant{
		{
			"descriptors are marked to close at execve", "runtime/initproc/steps_process.go",
			"imm(unix.CLOSE_RANGE_CLOEXEC))", "imm(0x40))", "TestAttack_LeakedDescriptors", "",
			[2]string{},
		},
		{
			"a working directory outside of the root is refused", "runtime/initproc/steps_process.go",
			`is outside of the container", cwd, 0xff, '/', unix.EXDEV)`, `is outside of the container", cwd, 0, 0, unix.EXDEV)`,
			"TestAttack_CwdOutside|TestAttack_CVE_2024_21626_CwdFd", "",
			[2]string{},
		},
		{
			"the child that joins is born into the pid namespace last", "runtime/initproc/steps.go",
			`{"pid namespace", func(p *Program, s *execState) { planFork(p, s.SyncFD) }},`, ``, "TestAttack_CVE_2016_9962_ExecRoot", "",
			[2]string{},
		},
		{
			"mount points of proc and sysfs are no symlinks", "runtime/initproc/steps_mount.go",
			"resolve |= unix.RESOLVE_NO_SYMLINKS", "resolve |= 0", "TestAttack_CVE_2023_27561_SymlinkedProc", "",
			[2]string{},
		},
		{
			"/dev of the image is no symlink", "runtime/initproc/steps_dev.go",
			"inRoot|unix.RESOLVE_NO_SYMLINKS).into(s.dev)", "inRoot).into(s.dev)", "TestAttack_CVE_2026_41579_SymlinkedDev", "",
			[2]string{},
		},
		{
			"what the image has in the place of a device is compared", "runtime/initproc/steps_dev.go",
			`orElse(exists, unix.EEXIST)
	if d.UID`, `ignore(unix.EEXIST)
	if d.UID`, "TestAttack_CVE_2025_31133_FakeDevNull", "",
			[2]string{},
		},
		{
			"the mount point of a terminal is no symlink", "runtime/initproc/steps_dev.go",
			"unix.O_PATH, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS).into(into)", "unix.O_PATH, 0).into(into)",
			"TestAttack_CVE_2025_52565_SwappedConsole", "",
			[2]string{},
		},
		{
			"mount points are looked up beneath the root", "runtime/initproc/steps_mount.go",
			"inRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS", "inRoot = 0",
			"TestAttack_CVE_2021_30465_MountTargetSymlink|TestAttack_CVE_2021_30465_RacingTarget", "",
			[2]string{},
		},
		{
			"inheritable capabilities are those of the spec", "runtime/initproc/steps_process.go",
			"lo(c.Inheritable)|c.Effective", "lo(c.Permitted)|c.Effective", "TestAttack_CVE_2022_29162_InheritableCaps", "",
			[2]string{},
		},
		{
			"a root that is only entered covers the host's", "runtime/initproc/steps_mount.go",
			`planMove(p, "move root over /", val(s.root), imm(unix.AT_FDCWD), "/")`, ``, "TestAttack_NoPivotChrootEscape", "",
			[2]string{},
		},
		{
			"init runs from a sealed file", "runtime/initproc/image.go",
			"seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE", "seals := unix.F_SEAL_SEAL",
			"TestImageMappings", "runtime/initproc",
			[2]string{},
		},
		{
			"no symlink leads a mount into proc", "runtime/initproc/steps_mount.go", "	defer planOutsideProc(p, m, into)\n", "",
			"TestAttack_CVE_2019_16884_LinkIntoProc", "",
			[2]string{},
		},
		{
			"what init did not report is not taken for success", "runtime/initproc/child.go",
			`return !strings.HasPrefix(exe, "/memfd:"+imageName)`, `return !strings.HasPrefix(exe, "/nosuch")`, "TestAttack_FilterKillsTheReport", "",
			[2]string{`strings.TrimSuffix(string(name), "\n") != processName`, `strings.TrimSuffix(string(name), "\n") != "/"`},
		},
	}
}

// hostMutants are of what the runtime does on the host.
func hostMutants() []mutant {
	return []mutant{
		{
			"only parameters of namespaces can be set", "runtime/container/plan.go",
			`	return "", false
}

func planPersonality`, `	return specs.MountNamespace, true
}

func planPersonality`, "TestAttack_CVE_2022_0811_SysctlSmuggling", "",
			[2]string{},
		},
		{
			"a namespace joined by path may be the host's", "runtime/container/namespaces.go",
			"a.Dev == b.Dev && a.Ino == b.Ino", "a.Dev == b.Dev && a.Ino != a.Ino", "TestAttack_HostNamespaceByPath", "",
			[2]string{},
		},
		{
			"the caller's null device is not handed on", "runtime/container/stdio.go", "if f == nil || isNull(f) {", "if f == nil {",
			"TestAttack_ModeOfHostDevice", "",
			[2]string{},
		},
		{
			"the host's device nodes are mounted read-only", "fs/rootfs/source.go",
			"attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}", "attr := &unix.MountAttr{}", "TestAttack_ModeOfHostDevice", "",
			[2]string{},
		},
		{
			"an engine is known by its process", "runtime/container/policy.go", "listening, err = engineListeners(cr.src)",
			"listening, err = map[int]string{}, nil", "TestAttack_EngineSocketUnderAnotherName", "",
			[2]string{},
		},
		{
			"a profile by annotation grants no more", "runtime/container/profile.go", "more := profiles.Excess(named, p)",
			"more := profiles.Excess(p, p)", "TestChoose", "runtime/container",
			[2]string{},
		},
		{
			"paths of the image are looked up in its root", "fs/safepath/open.go",
			"openat2(root, unsafePath, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)", "openat2(root, unsafePath, flags, 0)",
			"TestAttack_CopyUpSymlinks", "",
			[2]string{},
		},
		{
			"hooks of the host are looked up on the host", "runtime/container/hooks.go", `if err := unix.Chroot("."); err != nil {`,
			"if err := error(nil); err != nil {", "TestAttack_CreateContainerHookOfTheImage", "",
			[2]string{"if err := unix.Fchdir(int(root.Fd())); err != nil {", "if err := error(nil); err != nil {"},
		},
		{
			"cgroup paths do not climb", "runtime/cgroup/plan.go", `if part == ".." {`, `if part == "..." {`, "TestAttack_DotsInNames", "", [2]string{},
		},
		{
			"a state directory is the caller's alone", "runtime/container/runtime.go",
			"if int(st.Uid) != os.Geteuid() || st.Mode&othersWrite != 0 {", "if st.Mode&othersWrite == 0o777 {",
			"TestAttack_StateOfAnother", "integration/rootless",
			[2]string{},
		},
		{
			"layers are the caller's alone", "fs/layer/store.go", "if int(st.Uid) != os.Geteuid() || st.Mode&others != 0 {",
			"if st.Mode&others == 0o777 {", "TestAttack_LayersOfAnother", "fs/layer",
			[2]string{},
		},
		{
			"a shim's socket is in a directory of the caller's", "shim/socket/socket.go",
			"if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {", "if st.Mode&unix.S_IFMT == unix.S_IFLNK {",
			"TestAttack_SocketDirOfAnother", "shim/socket",
			[2]string{},
		},
		{
			"images of a checkpoint are the caller's alone", "runtime/criu/run.go",
			"(int(st.Uid) != os.Geteuid() || st.Mode&othersWrite != 0)", "st.Mode&othersWrite == 0o777",
			"TestAttack_ImagesOfAnother", "runtime/criu",
			[2]string{},
		},
		{
			"what is hidden may be an engine's", "runtime/container/enginesocket.go", "			if !l.own() {", "			if false {",
			"TestAttack_EngineBehindUnreadableProc", "runtime/container",
			[2]string{},
		},
		{
			"one at a time changes a container", "runtime/container/runtime.go", "unix.Flock(int(c.dir.Fd()), unix.LOCK_EX)",
			"unix.Flock(int(c.dir.Fd()), unix.LOCK_SH)", "TestOneID", "integration/races",
			[2]string{},
		},
		{
			"a failed creation is undone", "runtime/container/create.go", "		cr.undo.run()\n", "", "TestCrash_Error", "", [2]string{},
		},
	}
}

// policyMutants are of what a profile refuses.
func policyMutants() []mutant {
	return []mutant{
		{
			"nothing but proc is mounted on proc", "profiles/mounts.go", `if destination != "/sys" && !within("/proc", destination) {`,
			`if destination != "" {`, "TestAttack_CVE_2019_16884_BindOverProc", "profiles",
			[2]string{},
		},
		{
			"name servers are the engine's to say", "profiles/mounts.go", "&& (shared || p.Network.Mode == NetworkGateway)", "&& false",
			"TestAttack_OwnNameServer", "profiles",
			[2]string{"shared bool) bool {", "_ bool) bool {"},
		},
		{
			"kernel file systems are read-only", "profiles/mounts.go", `case "sysfs", "cgroup", "cgroup2":
	default:`, `case "none":
	default:`, "TestAttack_WritableSysfs", "integration/profiles", [2]string{},
		},
		{
			"a second name of a host directory is known by its inode", "profiles/mounts.go", "case k.Ino == m.Ino:", "case k.Ino == 0:",
			"TestAttack_SecondNameOfHostDirectory", "profiles",
			[2]string{},
		},
		{
			"what is asked beyond the profile is refused", "profiles/plan.go", "func() error { return p.checkNamespaces(spec, host) },", "",
			"TestBeyondTheProfile", "integration/hardening",
			[2]string{},
		},
		{
			"the profile's own filter stands beside the engine's", "profiles/plan.go", "plan.AddFilter(ours)", "_ = ours",
			"TestFromInside", "integration/hardening",
			[2]string{},
		},
		{
			"sockets are of kinds and protocols that are listed", "profiles/seccomp_agent.go", "ipprotoSCTP, ipprotoSMC, ipprotoMPTCP} {", "ipprotoSCTP, ipprotoMPTCP} {",
			"TestAttack_SocketsAroundThePorts", "cmd/agentsafe-seccomp",
			[2]string{},
		},
		{
			"what is mounted below a source is looked at", "profiles/mounts.go", "return p.checkMounted(what, src.Mounted)", "return nil",
			"TestAttack_MountsBelowASource", "",
			[2]string{},
		},
		{
			"the root file system is judged", "profiles/plan.go", "func() error { return p.checkRoot(spec, &host) },", "",
			"TestAttack_HostAsRoot", "",
			[2]string{},
		},
		{
			"an update is within the profile", "runtime/container/control.go", "bounded, notes := d.Policy.Profile.PlanUpdate(r, quota, period)",
			"_, notes := d.Policy.Profile.PlanUpdate(nil, quota, period)", "TestAttack_LimitsByUpdate", "",
			[2]string{"g.Set(bounded)", "g.Set(r)"},
		},
		{
			"files of cgroup v2 are within the profile", "profiles/limits.go", "		out[key] = strconv", "		_ = strconv",
			"TestAttack_LimitsByUnifiedNames", "profiles",
			[2]string{},
		},
		{
			"a socket stays what it was made", "profiles/ports.go", "if b.profile.Network.ConnectPorts != nil || b.profile.Network.ListenPorts != nil {",
			"if b.profile == nil {", "TestAttack_SocketTurnedIntoAnother", "cmd/agentsafe-seccomp",
			[2]string{},
		},
		{
			"inheritable capabilities are cut", "profiles/capabilities.go", "out.Inheritable = slices.Clone(out.Ambient)",
			"out.Inheritable = inheritable", "TestAttack_CVE_2022_29162_Inheritable", "profiles",
			[2]string{},
		},
		{
			"secrets are refused to tasks with untrusted input", "profiles/trust.go", "	return nil, p.refuseSecrets(secrets)\n}\n\n// sendsTo",
			"	return notes, nil\n}\n\n// sendsTo", "TestAttack_SecretsWithUntrustedInput", "profiles",
			[2]string{},
		},
	}
}

// otherMutants are of the network, images and filters.
func otherMutants() []mutant {
	// The default's rules are a constant that was generated: these take them as they are compiled.
	generated := [2]string{"len(p.AllowPrivate) == 0 && littleEndian():", "p.AllowPrivate == nil && !p.Filtered():"}
	return []mutant{
		{
			"account files of an image are regular files", "fs/image/user.go", "if !info.Mode().IsRegular() {", "if info == nil {",
			"TestAttack_AccountFiles", "fs/image",
			[2]string{},
		},
		{
			"the cache of filters is private", "profiles/bpf/cache.go",
			"return (st.Uid == 0 || int(st.Uid) == os.Geteuid()) && st.Mode&0o022 == 0", "return st.Mode&0o022 != 0o777",
			"TestAttack_CacheOfAnother", "profiles/bpf",
			[2]string{},
		},
		{
			"a filter of the cache is whole", "profiles/bpf/cache.go", "if string(data[:len(magic)]) != magic || !bytes.Equal(data[len(magic):headerBytes], sum[:]) {",
			"if bytes.Equal(nil, sum[:]) {", "TestLoad_DamagedFile", "profiles/bpf",
			[2]string{},
		},
		{
			"source routes are refused", "netns/rules.go", "compare(unix.NFT_CMP_GT, 5)", "compare(unix.NFT_CMP_GT, 99)",
			"TestAttack_SourceRoute", "netns", generated,
		},
		{
			"only its own addresses are a task's source", "netns/rules.go", "host32(unix.RTN_LOCAL)...), verdict(nfDrop, \"\")",
			"host32(unix.RTN_LOCAL)...), verdict(nfAccept, \"\")", "TestAttack_ForgedInboundConnection", "netns", generated,
		},
		{
			"a gateway's namespace is closed without it", "netns/rules.go", "		return planHold()\n", "		return &table{nil, []chain{refusal(), forward()}}\n",
			"TestAttack_DeadGateway", "netns",
			[2]string{},
		},
		{
			"no rule is a refusal", "netns/egress/policy.go", `	return refuse(NoRule, "", "no rule allows %s:%d; a rule \"%s:%d\" would", host, port, host, port)`,
			"	return Decision{Allowed: true}", "TestAttack_EmptyAllowList|TestAttack_Refused", "integration/network",
			// A name is refused twice: when it is asked for, and when it is connected to.
			[2]string{`	return refuse(NoRule, "", "no rule allows %s; a rule \"%s:443\" would", host, host)`, "	return Decision{Allowed: true}"},
		},
		{
			"names that no rule has are not asked for", "netns/egress/policy.go", `	return refuse(NoRule, "", "no rule allows %s; a rule \"%s:443\" would", host, host)`,
			"	return Decision{Allowed: true}", "TestAttack_DNSExfiltration", "integration/network",
			[2]string{},
		},
		{
			"names in a layer do not climb", "fs/image/filter.go", `case part == "..":`, `case part == "...":`, "TestAttack_Layer", "fs/image", [2]string{},
		},
	}
}
