package netns

import (
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func benchSpace(b *testing.B) *os.File {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("probe euid: network namespaces need root")
	}
	found := make(chan *os.File)
	go func() {
		runtime.LockOSThread()
		f := (*os.File)(nil)
		if unix.Unshare(unix.CLONE_NEWNET) == nil {
			f, _ = os.Open("/proc/thread-self/ns/net")
		}
		found <- f
	}()
	f := <-found
	if f == nil {
		b.Fatal("no namespace")
	}
	return f
}

// One Install per namespace, as create does it.
func BenchmarkInstall(b *testing.B) {
	rules := mustPlan(b, Policy{Mode: ModeEngine})
	for b.Loop() {
		b.StopTimer()
		ns := benchSpace(b)
		b.StartTimer()
		if err := rules.Install(ns); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		ns.Close()
		b.StartTimer()
	}
}

func BenchmarkReinstall(b *testing.B) {
	rules := mustPlan(b, Policy{Mode: ModeEngine})
	ns := benchSpace(b)
	defer ns.Close()
	for b.Loop() {
		if err := rules.Install(ns); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFinalizeWithoutLink(b *testing.B) {
	rules := mustPlan(b, Policy{Mode: ModeEngine})
	ns := benchSpace(b)
	defer ns.Close()
	if err := rules.Install(ns); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := rules.Finalize(ns, []netip.Addr{netip.MustParseAddr("10.0.0.53")}); err != nil {
			b.Fatal(err)
		}
	}
}
