package network

import (
	"bytes"
	"fmt"
	"io"
	"net"
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
	const bytesEach, turns, rounds = 256 << 20, 5, 300
	l, err := outside.listen(":9000")
	if err != nil {
		t.Fatal(err)
	}
	go stream(l, bytesEach)
	_, _, dir := up(t, rules("tcp://git.test:5432,9000", "tcp://other.test:5432"))
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
	defer inside.Close()
	name, second := lookupInside(t, inside, "git.test."), lookupInside(t, inside, "other.test.")
	through := func(name string) func(port string) (net.Conn, error) {
		return func(port string) (c net.Conn, err error) {
			err = in(inside, func() (err error) {
				c, err = net.Dial("tcp", net.JoinHostPort(name, port))
				return err
			})
			return c, err
		}
	}
	paths := []struct {
		name string
		dial func(port string) (net.Conn, error)
	}{
		{"direct", func(port string) (net.Conn, error) { return net.Dial("tcp", net.JoinHostPort(public4, port)) }},
		{"gateway", through(name)},
	}
	var rate, first [2][]float64
	for range turns {
		for i, p := range paths {
			rate[i] = append(rate[i], throughput(t, p.dial, bytesEach))
			for range rounds / turns {
				first[i] = append(first[i], firstByte(t, p.dial))
			}
		}
	}
	fmt.Printf("throughput    direct %7.0f MB/s   gateway %7.0f MB/s   ratio %.2f\n", median(rate[0])/1e6, median(rate[1])/1e6, median(rate[1])/median(rate[0]))
	fmt.Printf("first byte    direct %7.0f us     gateway %7.0f us     more  %.0f us\n", median(first[0])*1e6, median(first[1])*1e6, (median(first[1])-median(first[0]))*1e6)
	var each [2][]float64
	for range turns {
		for i, p := range paths {
			each[i] = append(each[i], connectionRate(t, p.dial))
		}
	}
	fmt.Printf("connections   direct %7.0f /s     gateway %7.0f /s     ratio %.2f (each with its first byte, 8 at a time)\n",
		median(each[0]), median(each[1]), median(each[1])/median(each[0]))
	idleMemory(t, []func(string) (net.Conn, error){through(name), through(second)}, dir)
}

// connectionRate opens connections, waits for the first byte of each, and closes them.
func connectionRate(t *testing.T, dial func(string) (net.Conn, error)) float64 {
	t.Helper()
	const many, atOnce = 2000, 8
	began := time.Now()
	failed := make(chan error, atOnce)
	for range atOnce {
		go func() {
			for range many / atOnce {
				c, err := dial("5432")
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
func idleMemory(t *testing.T, dial []func(string) (net.Conn, error), dir string) {
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

// gatewayMemory is the resident memory of the container's gateway in KiB.
func gatewayMemory(t *testing.T, dir string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "network.json"))
	if err != nil {
		t.Fatal(err)
	}
	pid, _, _ := bytes.Cut(bytes.TrimPrefix(data, []byte(`{"pid":`)), []byte(","))
	status, err := os.ReadFile("/proc/" + string(pid) + "/status")
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
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		}()
	}
}

func throughput(t *testing.T, dial func(string) (net.Conn, error), want int64) float64 {
	t.Helper()
	began := time.Now()
	c, err := dial("9000")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sink := make([]byte, 256<<10)
	var got int64
	for {
		n, err := c.Read(sink)
		got += int64(n)
		if err == io.EOF {
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
func firstByte(t *testing.T, dial func(string) (net.Conn, error)) float64 {
	t.Helper()
	began := time.Now()
	c, err := dial("5432")
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

// in runs f on a thread in a network namespace and brings the thread back: what f costs beside is a few microseconds.
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
