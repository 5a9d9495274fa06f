// Package vm runs the core of the tests on another machine: Debian's own kernel (6.1, Landlock ABI 2) under QEMU, with
// pure cgroup v2 and systemd as the first process, which is what most hosts of this runtime look like.
//
// The machine is made here: a Debian root by mmdebstrap on one disk, cached by its recipe; the programs and compiled
// tests of this checkout on a second one; an initramfs of busybox and the few modules that a disk needs. Tests write to
// a second serial port, and each becomes a subtest here, so that a failure in the machine is a failure of this package
// and a skip in the machine names its probe in the same summary.
//
// It takes minutes, since nothing but emulation (TCG) can be counted on: it belongs to `make test-long` and runs when
// AGENTSAFE_TEST_LONG is set. Rejected: KVM (absent in most CI machines), the microvm machine type (hangs with
// Debian's kernel), an initramfs as the root (pivot_root refuses it), a shared folder (the cloud kernel has no 9p).
package vm
