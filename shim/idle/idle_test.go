package idle

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const smaps = `00400000-00b52000 r-xp 00000000 fe:00 1234                               /usr/bin/agentsafe-shim
Size:               7496 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00b52000-00b53000 r--p 00752000 fe:00 1234                               /usr/bin/agentsafe-shim (deleted)
Private_Dirty:         4 kB
Anonymous:             4 kB
00b60000-00b70000 rw-p 00760000 fe:00 1234                               /usr/bin/a b
Private_Dirty:         0 kB
c000000000-c000400000 rw-p 00000000 00:00 0 
Anonymous:            96 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
`

func TestParseMappings(t *testing.T) {
	got, err := parseMappings(strings.NewReader(smaps))
	want := []mapping{
		{from: 0x400000, to: 0xb52000, inode: 1234},
		{from: 0xb52000, to: 0xb53000, inode: 1234, private: true},
		{from: 0xb60000, to: 0xb70000, inode: 1234, writable: true},
		{from: 0xc000000000, to: 0xc000400000, writable: true, private: true},
		{from: 0xffffffffff600000, to: 0xffffffffff601000},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"Size: 4 kB\n", "x\n", "1-0 r-xp 0 0:0 0\n", "g-h r-xp 0 0:0 0\n", "1-2 r 0 0:0 0\n"} {
		if got, err := parseMappings(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is taken for %+v", bad, got)
		}
	}
}

// TestDropProgram: the program goes on after its own pages have been unmapped, and fewer are mapped.
func TestDropProgram(t *testing.T) {
	before := programPages(t)
	if err := dropProgram(); err != nil {
		t.Fatal(err)
	}
	if after := programPages(t); after >= before {
		t.Errorf("%d pages of files are mapped, %d before", after, before)
	}
}

// programPages counts the resident pages that are mapped from files, as proc_pid_statm(5) tells them.
func programPages(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.Fields(string(data))[2])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestWatch: memory is given back after a rest, and not again before the pause is over.
func TestWatch(t *testing.T) {
	w := NewWatch(time.Millisecond, time.Hour)
	w.Called()
	deadline := time.Now().Add(time.Minute)
	var first time.Time
	for first.IsZero() {
		if time.Now().After(deadline) {
			t.Fatal("nothing was given back")
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil) //nolint:errcheck // an early wake-up is none the worse
		w.mu.Lock()
		first = w.last
		w.mu.Unlock()
	}
	w.Called()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.timer.Stop() {
		t.Error("the second release did not wait for the pause")
	}
}

// TestUnused: never during a call, however long, and again after each.
func TestUnused(t *testing.T) {
	told := make(chan struct{}, 100)
	u := NewUnused(time.Millisecond, func() { told <- struct{}{} })
	<-told
	end, other := u.Call(), u.Call()
	end()
	for len(told) > 0 { // of before the calls
		<-told
	}
	select {
	case <-told:
		t.Error("told during a call")
	case <-time.After(50 * time.Millisecond):
	}
	other()
	<-told
}
