package netns

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/thread"
)

// Probe reports whether this kernel and these privileges can enforce
// ModeEngine: it installs its rules into a network namespace that it makes
// and throws away. nil means yes; the error is Install's, or that of making
// the namespace. It takes a few milliseconds.
func Probe() error {
	rules, err := PlanRules(Policy{Mode: ModeEngine})
	if err != nil {
		return err
	}
	ns, err := newNamespace()
	if err != nil {
		return fmt.Errorf("probe nftables: %w", err)
	}
	defer ns.Close()
	return rules.Install(ns)
}

// newNamespace makes a network namespace that lives as long as its handle.
func newNamespace() (ns *os.File, err error) {
	thread.Run(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("make a network namespace: %w", err)
			return
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
	})
	return ns, err
}
