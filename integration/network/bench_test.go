package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// TestCost measures the gateway against a direct connection to the same server, by turns, and prints the ratios. It is a
// measurement and no test of speed: a loaded machine would fail it.
func TestCost(t *testing.T) {
	if os.Getenv("AGENTSAFE_BENCH_NETWORK") == "" {
		t.Skip("probe AGENTSAFE_BENCH_NETWORK: not set; make bench-network sets it")
	}
	const bytesEach = 256 << 20
	// Servers that speak first. All of them close first, too: whoever does keeps the connection's ports for a minute, and with
	// tens of thousands of those on this side the search for a free port would be what is measured.
	for at, n := range map[string]int64{":9000": bytesEach, ":9001": 1} {
		l, err := outside.listen(at)
		if err != nil {
			t.Fatal(err)
		}
		go stream(l, n)
	}
	box.MustRun(t, "sysctl", "-q", "-w", "net.ipv4.ip_local_port_range=10000 65000") // closed connections keep theirs for a minute
	startHelloServers(t, bytesEach)
	squid := startSquid(t)
	_, _, dir := up(t, rules("tcp://git.test:5432,9000,9001", "tcp://other.test:5432", "https://git.test:9443-9446"))
	inside := insideOf(t, dir)
	name, second := lookupInside(t, inside, "git.test."), lookupInside(t, inside, "other.test.")
	own, err := os.Open("/proc/thread-self/ns/net") // the process's first thread may have gone out into the world
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	direct := dialIn(own, public4)
	through := func(name string) dialFunc { return dialIn(inside, name) }
	fmt.Println("\nany protocol: the destination is all that is checked")
	compare(t, []benchPath{{"direct", direct, 0}, {"gateway", through(name), gatewayPID(t, dir)}}, "9001", "9000", bytesEach)
	fmt.Println("\nTLS: the name in the hello is checked")
	hello := clientHello(t, "git.test")
	paths := []benchPath{{"direct", greet(direct, hello, 0), 0}, {"gateway", greet(through(name), hello, 0), gatewayPID(t, dir)}}
	if squid > 0 {
		paths = append(paths, benchPath{"squid", greet(direct, hello, squidOffset), squid}) // redirected by its ports
	} else {
		fmt.Println("squid         not installed: integration/deps.sh bench brings it")
	}
	compare(t, paths, "9443", "9444", bytesEach)
	fmt.Println("\nTLS, and the world is behind a link of 10 Gb/s (a token bucket): what is lost there is lost by the processors alone")
	behindLink(t, paths, "9444", bytesEach)
	fmt.Println()
	if os.Getenv("AGENTSAFE_BENCH_NETWORK") == "relay" {
		return
	}
	idleMemory(t, []dialFunc{through(name), through(second)}, dir)
	createCost(t)
}

// dialFunc connects to a port of the server.
type dialFunc func(port string) (net.Conn, error)

// dialIn connects to a host from inside a network namespace. All ways are made like this one, so that what it costs to
// enter a namespace is in all figures. Connections to what is as near as here are made before connect returns.
func dialIn(ns *os.File, host string) dialFunc {
	to := unix.SockaddrInet4{Addr: netip.MustParseAddr(host).As4()}
	return func(port string) (net.Conn, error) {
		n, err := strconv.Atoi(port)
		if err != nil {
			return nil, err
		}
		var fd int
		if err := in(ns, func() (err error) {
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			return err
		}); err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), "connection")
		defer f.Close()
		at := to
		at.Port = n
		if err := unix.Connect(fd, &at); err != nil {
			return nil, err
		}
		return net.FileConn(f)
	}
}

type benchPath struct {
	name string
	dial dialFunc
	pid  int // of the process in between, 0 for none
}

// compare takes the ways by turns and prints medians, the ratios to the first of them.
func compare(t *testing.T, paths []benchPath, answers, streams string, bytesEach int64) {
	t.Helper()
	const turns, rounds = 7, 60
	rate, first, each := make([][]float64, len(paths)), make([][]float64, len(paths)), make([][]float64, len(paths))
	cpu := make([]time.Duration, len(paths))
	for range turns {
		for i, p := range paths {
			rate[i] = append(rate[i], throughput(t, p.dial, streams, bytesEach))
			for range rounds {
				first[i] = append(first[i], firstByte(t, p.dial, answers))
			}
			before := processorTime(t, p.pid)
			each[i] = append(each[i], connectionRate(t, p.dial, answers))
			cpu[i] += processorTime(t, p.pid) - before
		}
	}
	line := func(what, unit string, values [][]float64, scale float64, relation func(v, direct float64) string) {
		fmt.Printf("%-13s", what)
		for i, p := range paths {
			fmt.Printf(" %s %7.0f %s", p.name, median(values[i])*scale, unit)
			if i > 0 {
				fmt.Printf(" (%s)", relation(median(values[i]), median(values[0])))
			}
		}
		fmt.Println()
	}
	ratio := func(v, direct float64) string { return fmt.Sprintf("x %.2f", v/direct) }
	line("throughput", "MB/s", rate, 1e-6, ratio)
	line("first byte", "us", first, 1e6, func(v, direct float64) string { return fmt.Sprintf("%+.0f us", (v-direct)*1e6) })
	line("connections", "/s", each, 1, ratio) // each with its first byte, 8 at a time
	fmt.Print("processor    ")
	for i, p := range paths[1:] {
		fmt.Printf(" %s %.0f us a connection", p.name, float64(cpu[i+1].Microseconds())/(turns*rateConnections))
	}
	fmt.Println()
}

// insideOf opens the network namespace of the container whose state is in dir.
func insideOf(t *testing.T, dir string) *os.File {
	t.Helper()
	state, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(state), `"initPid":`)
	pid, _, _ := strings.Cut(after, ",")
	inside, err := os.Open("/proc/" + pid + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	return inside
}

const rateConnections = 2000

// processorTime is what a process has used, to ten milliseconds; 0 for none.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	if pid == 0 {
		return 0
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	const user, system, tick = 11, 12, 10 * time.Millisecond // counted behind the name, which may hold anything
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	var sum time.Duration
	for _, i := range []int{user, system} {
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(n) * tick
	}
	return sum
}

// connectionRate opens connections, waits for the first byte of each, and closes them.
func connectionRate(t *testing.T, dial dialFunc, port string) float64 {
	t.Helper()
	const many, atOnce = rateConnections, 8
	began := time.Now()
	failed := make(chan error, atOnce)
	for range atOnce {
		go func() {
			for range many / atOnce {
				c, err := dial(port)
				if err == nil {
					_, err = c.Read(make([]byte, 64))
					c.Close()
				}
				if err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	for range atOnce {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	return many / time.Since(began).Seconds()
}

// idleMemory opens connections, to names by turns because one name gets no more than 4096, and leaves them alone.
func idleMemory(t *testing.T, dial []dialFunc, dir string) {
	t.Helper()
	before := gatewayMemory(t, dir)
	const many = 5000
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range many {
		c, err := dial[i%len(dial)]("5432")
		if err != nil {
			t.Fatalf("after %d connections: %v", len(conns), err)
		}
		conns = append(conns, c)
	}
	time.Sleep(3 * time.Second)
	fmt.Printf("memory        idle %d KiB, with %d idle connections %d KiB\n", before, many, gatewayMemory(t, dir))
}

// gatewayPID is the process of the gateway of the container whose state is in dir.
func gatewayPID(t *testing.T, dir string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "network.json"))
	if err != nil {
		t.Fatal(err)
	}
	var record struct{ PID int }
	if err := json.Unmarshal(data, &record); err != nil || record.PID == 0 {
		t.Fatalf("%s: %v", data, err)
	}
	return record.PID
}

// gatewayMemory is the resident memory of the container's gateway in KiB.
func gatewayMemory(t *testing.T, dir string) int {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(gatewayPID(t, dir)) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

func stream(l net.Listener, n int64) {
	block := make([]byte, 256<<10)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for sent := int64(0); sent < n; sent += int64(len(block)) {
				if _, err := c.Write(block[:min(int64(len(block)), n-sent)]); err != nil {
					return
				}
			}
		}()
	}
}

func throughput(t *testing.T, dial dialFunc, port string, want int64) float64 {
	t.Helper()
	began := time.Now()
	c, err := dial(port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sink := make([]byte, 256<<10)
	var got int64
	for {
		n, err := c.Read(sink)
		got += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got != want {
		t.Fatalf("%d bytes, want %d", got, want)
	}
	return float64(got) / time.Since(began).Seconds()
}

// firstByte connects and waits for the server's banner.
func firstByte(t *testing.T, dial dialFunc, port string) float64 {
	t.Helper()
	began := time.Now()
	c, err := dial(port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	return time.Since(began).Seconds()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// in runs f on a thread in a network namespace and brings the thread back.
func in(ns *os.File, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = f()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(back) // the rest of the tests would run in there
	}
	return err
}

// lookupInside asks the gateway for the address that stands for a name.
func lookupInside(t *testing.T, inside *os.File, name string) string {
	t.Helper()
	var conn net.Conn
	if err := in(inside, func() (err error) {
		conn, err = net.Dial("udp", "127.0.0.1:53")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	reply, _, err := (&dns.Client{}).ExchangeWithConn(q, &dns.Conn{Conn: conn})
	if err != nil || len(reply.Answer) != 1 {
		t.Fatalf("%v, %v", reply, err)
	}
	a, ok := reply.Answer[0].(*dns.A)
	if !ok {
		t.Fatalf("%v", reply.Answer[0])
	}
	return a.A.String()
}
