package network

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// Servers that speak once they were spoken to, as TLS servers do, without the cost of TLS, which is the same for all ways.
// What goes to a port squidOffset higher is redirected to squid.
const (
	helloAnswers = 9443
	helloStreams = 9444
	squidOffset  = 2
)

func startHelloServers(t *testing.T, bytesEach int64) {
	t.Helper()
	for _, offset := range []int{0, squidOffset} {
		for port, n := range map[int]int64{helloAnswers + offset: 1, helloStreams + offset: bytesEach} {
			l, err := outside.listen(":" + strconv.Itoa(port))
			if err != nil {
				t.Fatal(err)
			}
			go stream(&afterHello{l}, n)
		}
	}
}

// behindLink compares throughput where the network is the bottleneck, as it is nearly everywhere: without a link, client,
// server and gateway share the processors, and what one of them uses the others lack.
func behindLink(t *testing.T, paths []benchPath, streams string, bytesEach int64) {
	t.Helper()
	box.MustRun(t, "tc", "-n", worldName, "qdisc", "add", "dev", "w0", "root", "tbf", "rate", "10gbit", "burst", "8mb", "latency", "20ms")
	defer box.MustRun(t, "tc", "-n", worldName, "qdisc", "del", "dev", "w0", "root")
	const turns = 7
	rate := make([][]float64, len(paths))
	for range turns {
		for i, p := range paths {
			rate[i] = append(rate[i], throughput(t, p.dial, streams, bytesEach))
		}
	}
	fmt.Print("throughput   ")
	for i, p := range paths {
		fmt.Printf(" %s %7.0f MB/s", p.name, median(rate[i])*1e-6)
		if i > 0 {
			fmt.Printf(" (x %.2f)", median(rate[i])/median(rate[0]))
		}
	}
	fmt.Println()
}

// afterHello is a listener whose connections have said something.
type afterHello struct{ net.Listener }

// Accept implements net.Listener.
func (l *afterHello) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &heard{Conn: c}, nil
}

type heard struct {
	net.Conn
	done bool
}

// Write waits for the hello before the first byte.
func (c *heard) Write(b []byte) (int, error) {
	if !c.done {
		if _, err := c.Read(make([]byte, 4096)); err != nil {
			return 0, err
		}
		c.done = true
	}
	return c.Conn.Write(b)
}

// greet is dial with a hello sent at once.
func greet(dial dialFunc, hello []byte, offset int) dialFunc {
	return func(port string) (net.Conn, error) {
		n, err := strconv.Atoi(port)
		if err != nil {
			return nil, err
		}
		c, err := dial(strconv.Itoa(n + offset))
		if err == nil {
			_, err = c.Write(hello)
		}
		return c, err
	}
}

// clientHello is what a TLS client sends first.
func clientHello(t *testing.T, name string) []byte {
	t.Helper()
	here, there := net.Pipe()
	go func() {
		tls.Client(here, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}).Handshake() //nolint:errcheck // it gets no answer
		here.Close()
	}()
	buf := make([]byte, 16<<10)
	n, err := there.Read(buf)
	there.Close()
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// startSquid starts Debian's squid, which peeks at the name of a hello and splices or ends the connection, for what goes
// to its ports, and returns its process; 0: it is not installed.
func startSquid(t *testing.T) int {
	t.Helper()
	program, err := exec.LookPath("squid")
	if err != nil {
		return 0
	}
	dir := box.TempDir(t)
	cert, err := outside.certificate(&tls.ClientHelloInfo{ServerName: "squid.test"})
	if err != nil {
		t.Fatal(err)
	}
	key, err := marshalKey(cert)
	if err != nil {
		t.Fatal(err)
	}
	both := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), key...)
	config := fmt.Sprintf(`visible_hostname squid
http_port 127.0.0.1:3131
https_port 127.0.0.1:3130 intercept ssl-bump tls-cert=%[1]s/squid.pem generate-host-certificates=off
acl hello at_step SslBump1
acl named ssl::server_name git.test
ssl_bump peek hello
ssl_bump splice named
ssl_bump terminate all
http_access allow all
dns_nameservers %[2]s
cache deny all
access_log none
cache_log %[1]s/cache.log
pinger_enable off
pid_filename %[1]s/squid.pid
coredump_dir %[1]s
cache_effective_user proxy
shutdown_lifetime 0 seconds
max_filedescriptors 16384
`, dir, resolver4)
	for name, data := range map[string][]byte{"squid.pem": both, "squid.conf": []byte(config)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	box.MustRun(t, "chown", "-R", "proxy", dir)
	box.MustRun(t, "sh", "-ec", fmt.Sprintf(`nft -f - <<'E'
table ip squid {
  chain out {
    type nat hook output priority -100
    ip daddr %s tcp dport { %d, %d } meta skuid != proxy redirect to :3130
  }
}
E`, public4, helloAnswers+squidOffset, helloStreams+squidOffset))
	d, err := box.StartDaemon("squid", []string{program, "-N", "-f", filepath.Join(dir, "squid.conf")}, []string{"sh", "-c", "ss -ltn | grep -q ':3130 '"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		box.MustRun(t, "nft", "delete", "table", "ip", "squid")
	})
	return d.Pid()
}

// createCost is what the gateway adds to the creation and start of a container, by turns.
func createCost(t *testing.T) {
	t.Helper()
	const turns = 25
	_, peer := harness.Peers(t)
	// A gateway wants somebody who starts it again, as limits do; that one's own start is told apart.
	modes := []string{"engine", "none", "supervised", "gateway"}
	times := make([][]float64, len(modes))
	for _, mode := range modes {
		network := "  mode: " + mode + "\n"
		switch mode {
		case "supervised":
			network = "  mode: none\nlimits: {wallClock: 1h}\n"
		case "gateway":
			network = rules("example.com")
		}
		install(t, "bench-"+mode, network)
	}
	for range turns {
		for i, mode := range modes {
			d := box.Bare(t, peer)
			d.Global = []string{"--profile", "bench-" + mode}
			began := time.Now()
			b := d.Create(t, harness.Sh("sleep 1000"))
			d.Must(t, "start", b.ID)
			times[i] = append(times[i], time.Since(began).Seconds())
			d.Must(t, "delete", "--force", b.ID)
		}
	}
	base := median(times[0])
	fmt.Printf("create, start")
	for i, mode := range modes {
		fmt.Printf(" %s %.1f ms", mode, median(times[i])*1e3)
		if i > 0 {
			fmt.Printf(" (%+.1f ms)", (median(times[i])-base)*1e3)
		}
	}
	fmt.Printf(", %+.1f ms over supervised\n", (median(times[3])-median(times[2]))*1e3)
}
