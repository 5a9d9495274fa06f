package cgroup

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// loadDeviceProgram loads a cgroup device program and returns its descriptor, which the caller closes. Source: bpf(2),
// BPF_PROG_LOAD.
func loadDeviceProgram(prog []bpfInsn) (int, error) {
	code := encodeBPF(prog)
	license := []byte("Apache-2.0\x00")
	// The addresses are integers to the garbage collector, so the memory is pinned while the kernel reads it.
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&code[0])
	pins.Pin(&license[0])
	attr := struct {
		progType, count   uint32
		insns, license    uint64
		logLevel, logSize uint32
		logBuf            uint64
	}{
		progType: unix.BPF_PROG_TYPE_CGROUP_DEVICE,
		count:    uint32(len(prog)),
		insns:    uint64(uintptr(unsafe.Pointer(&code[0]))),
		license:  uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	for {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		switch errno {
		case 0:
			return int(fd), nil
		case unix.EAGAIN, unix.EINTR: // the verifier gives up on a pending signal, which the Go runtime sends to preempt
			continue
		}
		return -1, errno
	}
}

// attachDeviceProgram attaches beside other programs (BPF_F_ALLOW_MULTI), which systemd may have put there.
func attachDeviceProgram(cgroupFD, progFD int) error {
	attr := struct{ target, prog, attachType, flags uint32 }{
		uint32(cgroupFD), uint32(progFD), unix.BPF_CGROUP_DEVICE, unix.BPF_F_ALLOW_MULTI,
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_ATTACH, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return errno
	}
	return nil
}
