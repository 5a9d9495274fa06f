package supervise

import (
	"fmt"
	"testing"

	"github.com/agentsafe/agentsafe/runtime/denials"
)

// Each of two commands that run side by side is told of its own refusals, and both of what is known to be nobody's; one
// that is reported too late is told to the next.
func TestRecent_SideBySide(t *testing.T) {
	var r recent
	say := func(what, branch string) { r.add(denials.Denial{Kind: denials.Syscall, What: what}, branch) }
	ask := func(since uint64, branch, want string) uint64 {
		t.Helper()
		list, omitted, next := r.since(since, branch)
		got := ""
		for _, d := range list {
			got += fmt.Sprintf("%s*%d ", d.What, d.Count)
		}
		if got != want || omitted != 0 {
			t.Errorf("%s is told %q and %d more, want %q", branch, got, omitted, want)
		}
		return next
	}
	_, _, mark := r.since(^uint64(0), "")
	say("early", "exec-1") // the kernel may be quicker than whoever tells of the command
	r.begins("exec-1")
	r.begins("exec-2")
	say("ptrace", "exec-1")
	say("mount", "exec-2")
	say("ptrace", "exec-1")
	say("connect", "")
	say("chroot", "made-by-the-task")
	next := ask(mark, "exec-1", "early*1 ptrace*2 connect*1 chroot*1 ")
	say("late", "exec-1")
	say("mount", "exec-2")
	ask(mark, "exec-2", "mount*2 connect*1 chroot*1 late*1 ")
	r.begins("exec-3")
	ask(next, "exec-3", "late*1 ")
	ask(mark, "", "early*1 ptrace*2 mount*2 connect*1 chroot*1 late*1 ")
}
