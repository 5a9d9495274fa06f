package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const roleVariable = "AGENTSAFE_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "go-program" {
		if err := goProgram(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A Go program under the filter: since Go 1.24 net.Listen asks for MPTCP first, and must fall back.
func TestAgentFilter_GoProgram(t *testing.T) {
	f := filters(t, "docker", nil)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		w.Write(encode(mustCompile(t, &f[1]))) //nolint:errcheck // the child says so
		w.Close()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=go-program")
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) {
		t.Skipf("probe network namespace: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// goProgram does what Go programs do: threads, a server and its client, a child process.
func goProgram() error {
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	program, err := decode(data)
	if err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := install(program); err != nil {
		return err
	}
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP); !errors.Is(err, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("MPTCP socket: %w", err)
	}
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(true)
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.Copy(c, c) //nolint:errcheck // the client notices
			c.Close()
		}
	}()
	var all sync.WaitGroup
	failed := make(chan error, 8)
	for range 8 {
		all.Go(func() { failed <- echo(l.Addr().String()) })
	}
	all.Wait()
	for range 8 {
		if err := <-failed; err != nil {
			return err
		}
	}
	if out, err := exec.CommandContext(context.Background(), "/bin/sh", "-c", "echo a | cat").CombinedOutput(); err != nil || string(out) != "a\n" {
		return fmt.Errorf("child process: %w: %s", err, out)
	}
	return nil
}

func echo(address string) error {
	c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

// loopbackUp prepares the namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}
