package initproc

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// labelLines are the lines of a program that have to do with SELinux's labels, without their numbers and cells.
func labelLines(p *Program) string {
	var out strings.Builder
	watched := regexp.MustCompile(`keycreate|label|Label|keyctl|"context"|move_mount.*mqueue`)
	for line := range strings.Lines(p.String()) {
		if watched.MatchString(line) && !strings.Contains(line, "execve") {
			line = regexp.MustCompile(`^ *\d+ +|\bc\d{2,}|r[wo]\+0x[0-9a-f]+|(then|on) .*?  `).ReplaceAllString(line, "")
			out.WriteString(line)
		}
	}
	return out.String()
}

// What SELinux is told, and when: the label of the keyring before that is joined, of message queues before they stand
// where others see them, of masks when they are made, of the process at the end. No machine of the tests has SELinux.
func TestLabels(t *testing.T) {
	if os.Getenv(emulatorEnv) != "" {
		t.Skip("probe emulator: system calls have the names of another architecture's table")
	}
	in := dockerCreate()
	in.SelinuxLabel, in.MountLabel = "system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"
	const want = `openat2(, "thread-self/attr/keycreate", {0x80001 0x0 0x9}, 24) ->   ; set label of the session keyring
write(, "system_u:system_r:container_t:s0:c1,c2", 38)  ; set label of the session keyring
close()  ; close label
keyctl(1, "_ses.box") ; join session keyring
openat2(, ".", {0x90000 0x0 0x8}, 24) ->   ; set linux.mountLabel of /dev/mqueue
fsetxattr(, "security.selinux", "system_u:object_r:container_file_t:s0:c1,c2", 43)  ; set linux.mountLabel of /dev/mqueue
move_mount(, "", , "", 68)  ; mount mqueue on /dev/mqueue
fsconfig(, 1, "context", "system_u:object_r:container_file_t:s0:c1,c2")  ; empty directory for linux.maskedPaths: option context
openat2(, "thread-self/attr/exec", {0x80001 0x0 0x9}, 24) ->   ; set process.selinuxLabel
write(, "system_u:system_r:container_t:s0:c1,c2", 38)  ; set process.selinuxLabel
close()  ; close label
`
	if got := labelLines(PlanCreate(in)); got != want {
		t.Errorf("the first process:\n%s\nwant\n%s", got, want)
	}
	if got := labelLines(PlanCreate(dockerCreate())); strings.Contains(got, "label") || strings.Contains(got, "context") {
		t.Errorf("labels where there is no SELinux:\n%s", got)
	}
	exec := fullExec()
	exec.ApparmorProfile = ""
	if got := labelLines(PlanExec(exec)); !strings.Contains(got, "keycreate") || strings.Index(got, "keycreate") > strings.Index(got, "keyctl") || !strings.Contains(got, "attr/exec") {
		t.Errorf("an exec:\n%s", got)
	}
}
