package denials

import (
	_ "embed"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The tables are "number name" lines, as golang.org/x/sys has them; a test compares.
//
//go:embed calls-amd64.txt
var callsAMD64 string

//go:embed calls-arm64.txt
var callsARM64 string

//go:embed calls-386.txt
var calls386 string

// GOARCH names an AUDIT_ARCH_ value as Go does; "" for one that is not known here.
func GOARCH(auditArch uint32) string {
	switch auditArch {
	case unix.AUDIT_ARCH_X86_64:
		return "amd64"
	case unix.AUDIT_ARCH_AARCH64:
		return "arm64"
	case unix.AUDIT_ARCH_I386:
		return "386"
	}
	return ""
}

// CallName returns the name of a system call, or its number and architecture where it has none.
func CallName(auditArch uint32, number int) string {
	arch := GOARCH(auditArch)
	table := map[string]string{"amd64": callsAMD64, "arm64": callsARM64, "386": calls386}[arch]
	begin := strconv.Itoa(number) + " "
	for line := range strings.Lines(table) {
		if name, ok := strings.CutPrefix(line, begin); ok {
			if name = strings.TrimSpace(name); arch == "386" {
				return name + " (32-bit)"
			}
			return name
		}
	}
	if arch == "" {
		arch = "architecture 0x" + strconv.FormatUint(uint64(auditArch), 16)
	}
	return "number " + strconv.Itoa(number) + " of " + arch
}
