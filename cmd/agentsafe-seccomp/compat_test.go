package main

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// No number passes by another ABI, whatever packs a profile has and whatever ABIs the engine's spec lists: Docker's names
// x86 and x32, and socketcall(2) of the first would go past every rule on socket(2).
func TestAttack_CompatABIs_EveryNumber(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skipf("probe compat ABIs: none tried on %s", runtime.GOARCH)
	}
	for name, packs := range map[string][]profiles.Pack{
		"no pack": nil, "debug": {profiles.PackDebug}, "browser": {profiles.PackBrowser}, "containers": {profiles.PackContainers},
		"sudo": {profiles.PackSudo}, "all": {profiles.PackDebug, profiles.PackBrowser, profiles.PackContainers, profiles.PackSudo},
	} {
		list := filters(t, "docker", func(p *profiles.Profile) {
			p.Syscalls.Packs = packs
			p.Syscalls.Allow = []string{"socketcall", "ipc"}
		})
		tried := 0
		for _, f := range list {
			program := mustCompile(t, &f)
			for nr := range uint32(1024) {
				for _, c := range []call{
					{nr: nr, arch: unix.AUDIT_ARCH_I386},
					{nr: nr | x32Bit, arch: unix.AUDIT_ARCH_X86_64},
					{nr: nr, arch: unix.AUDIT_ARCH_ARM},
					{nr: nr, arch: unix.AUDIT_ARCH_AARCH64},
					{nr: nr},
				} {
					tried++
					if got := answerText(evaluate(program, c)); got != "ENOSYS" {
						t.Fatalf("%s, filter %s: number %#x by ABI %#x: %s, want ENOSYS", name, f.Name, c.nr, c.arch, got)
					}
				}
			}
		}
		if tried < 5*1024*2 {
			t.Errorf("%s: only %d calls tried", name, tried)
		}
	}
}
