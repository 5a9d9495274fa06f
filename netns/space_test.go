package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const childEnv = "NETNS_TEST_CHILD"

// TestMain checks that no namespace handle is left open.
func TestMain(m *testing.M) {
	code := m.Run()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, e := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, "net:") {
			fmt.Fprintf(os.Stderr, "fd %s is still %s\n", e.Name(), to)
			code = 1
		}
	}
	os.Exit(code)
}

// isolated re-executes the test in a network namespace of its own, which has
// no way out, and returns true there. Namespaces made there end with it.
func isolated(t *testing.T) bool {
	t.Helper()
	return reexec(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
}

func reexec(t *testing.T, attr *syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv(childEnv) == t.Name() {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("probe euid: network namespaces need root")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", slowly(time.Minute).String())
	cmd.Env = append(os.Environ(), childEnv+"="+t.Name())
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in the namespace: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP: "+t.Name()+" ") {
		t.Skipf("in the namespace:\n%s", out)
	}
	t.Logf("%s", out)
	return false
}

// space is a network namespace held by a descriptor.
type space struct {
	tb testing.TB
	ns *os.File
}

func newSpace(tb testing.TB) *space {
	tb.Helper()
	s := &space{tb: tb}
	onThread(tb, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		s.ns = f
		return err
	})
	tb.Cleanup(func() { s.ns.Close() })
	return s
}

// onThread runs f on a thread that is thrown away afterwards.
func onThread(tb testing.TB, f func() error) {
	tb.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	if err := <-done; err != nil {
		tb.Fatal(err)
	}
}

// do runs f inside the namespace.
func (s *space) do(f func() error) {
	s.tb.Helper()
	onThread(s.tb, func() error {
		if err := unix.Setns(int(s.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// run runs commands, one a line, inside the namespace and returns their output.
func (s *space) run(lines string) string {
	s.tb.Helper()
	var all strings.Builder
	s.do(func() error {
		for line := range strings.Lines(lines) {
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			out, err := exec.CommandContext(s.tb.Context(), words[0], words[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", strings.TrimSpace(line), err, out)
			}
			all.Write(out)
		}
		return nil
	})
	return all.String()
}

func (s *space) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.ns.Fd()) }

// attach makes a veth pair between two namespaces.
func (s *space) attach(link string, other *space, otherLink string) {
	s.tb.Helper()
	s.run(fmt.Sprintf("ip link add %s type veth peer name %s netns %s", link, otherLink, other.path()))
}

func (s *space) install(p Policy) *Rules {
	s.tb.Helper()
	r := mustPlan(s.tb, p)
	if err := r.Install(s.ns); err != nil {
		s.tb.Fatal(err)
	}
	return r
}

func (s *space) finalize(r *Rules, nameservers ...string) {
	s.tb.Helper()
	if err := r.Finalize(s.ns, addrs(nameservers...)); err != nil {
		s.tb.Fatal(err)
	}
}

// socket opens a socket inside the namespace; it is closed with the test.
func (s *space) socket(family, typ, proto int) int {
	s.tb.Helper()
	var fd int
	s.do(func() (err error) {
		fd, err = unix.Socket(family, typ|unix.SOCK_CLOEXEC, proto)
		return err
	})
	s.tb.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// serve answers on addr:port, by TCP (with one byte, at once) and by UDP (each
// datagram with itself). Addresses must be the namespace's own.
func (s *space) serve(endpoint string) {
	s.tb.Helper()
	ap := netip.MustParseAddrPort(endpoint)
	tcp := s.socket(family(ap.Addr()), unix.SOCK_STREAM, 0)
	udp := s.socket(family(ap.Addr()), unix.SOCK_DGRAM, 0)
	must(s.tb, unix.SetsockoptInt(tcp, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	must(s.tb, unix.Bind(tcp, sockaddr(ap)))
	must(s.tb, unix.Listen(tcp, 16))
	must(s.tb, unix.Bind(udp, sockaddr(ap)))
	s.tb.Cleanup(func() { _ = unix.Shutdown(tcp, unix.SHUT_RDWR); _ = unix.Shutdown(udp, unix.SHUT_RDWR) })
	go func() {
		for {
			c, _, err := unix.Accept4(tcp, unix.SOCK_CLOEXEC)
			if err != nil {
				return
			}
			_, _ = unix.Write(c, []byte("!"))
			_ = unix.Close(c)
		}
	}()
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := unix.Recvfrom(udp, buf, 0)
			if err != nil || from == nil {
				return
			}
			_ = unix.Sendto(udp, buf[:n], 0, from)
		}
	}()
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

const answered = unix.Errno(0)

// patience is longer than any answer takes and bounds what hangs.
func patience() time.Duration { return slowly(600 * time.Millisecond) }

// atOnce is how long a refusal may take.
func atOnce() time.Duration { return slowly(200 * time.Millisecond) }

// kernelAtLeast says whether the running kernel is of this version or newer.
func kernelAtLeast(tb testing.TB, major, minor int) bool {
	tb.Helper()
	var u unix.Utsname
	must(tb, unix.Uname(&u))
	var gotMajor, gotMinor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &gotMajor, &gotMinor); err != nil {
		tb.Errorf("kernel release: %v", err)
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}

// slowly stretches a limit for an emulated machine, which says how slow it is
// in AGENTSAFE_TEST_SLOW.
func slowly(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv("AGENTSAFE_TEST_SLOW")); err == nil && n > 1 {
		return d * time.Duration(n)
	}
	return d
}

// call connects to an endpoint and waits for its answer. It returns the errno
// that the task sees, EAGAIN or EINPROGRESS if nothing came back.
func (s *space) call(network, endpoint string) (unix.Errno, time.Duration) {
	s.tb.Helper()
	ap := netip.MustParseAddrPort(endpoint)
	typ := unix.SOCK_STREAM
	if network == "udp" {
		typ = unix.SOCK_DGRAM
	}
	var err error
	var took time.Duration
	s.do(func() error {
		fd, e := unix.Socket(family(ap.Addr()), typ|unix.SOCK_CLOEXEC, 0)
		if e != nil {
			return e
		}
		defer unix.Close(fd)
		tv := unix.NsecToTimeval(int64(patience()))
		must(s.tb, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
		must(s.tb, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
		start := time.Now()
		err = exchange(fd, typ, ap)
		took = time.Since(start)
		return nil
	})
	if errors.Is(err, unix.EINTR) {
		return s.call(network, endpoint) // the Go runtime's own signal; a connection that was begun is no answer
	}
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		s.tb.Fatal(err)
	}
	return errno, took
}

func exchange(fd, typ int, ap netip.AddrPort) error {
	if err := unix.Connect(fd, sockaddr(ap)); err != nil {
		return err
	}
	if typ == unix.SOCK_DGRAM {
		if _, err := unix.Write(fd, []byte("?")); err != nil {
			return err
		}
	}
	n, err := unix.Read(fd, make([]byte, 16))
	if err == nil && n == 0 {
		return errors.New("closed without an answer")
	}
	return err
}

// reaches asserts that an endpoint answers.
func (s *space) reaches(network string, endpoints ...string) {
	s.tb.Helper()
	for _, e := range endpoints {
		if errno, took := s.call(network, e); errno != answered {
			s.tb.Errorf("%s %s: %v after %v, want an answer", network, e, errno, took)
		}
	}
}

// refused asserts that endpoints are refused with this errno, and at once.
func (s *space) refused(network string, want unix.Errno, endpoints ...string) {
	s.tb.Helper()
	for _, e := range endpoints {
		errno, took := s.call(network, e)
		if errno != want || took > atOnce() {
			s.tb.Errorf("%s %s: %v after %v, want %v within %v", network, e, errno, took, want, atOnce())
		}
	}
}
