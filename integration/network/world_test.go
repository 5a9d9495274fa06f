package network

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const (
	worldName = "world"
	resolver4 = "9.9.9.9"
	public4   = "93.184.216.34"
	public6   = "2606:2800:220::34"
	public4b  = "93.184.216.35"
	// worldSecret opens private.example.com to the user robot.
	worldSecret = "s3cr3t-of-the-robot"
)

// worldAddresses all have servers: what is refused would have answered.
func worldAddresses() []string {
	return []string{
		resolver4, public4, public4b, public6, "10.9.9.9", "192.168.9.9", "172.20.9.9", "100.64.9.9",
		"169.254.169.254", "100.100.100.200", "fd00:ec2::254", "fd99::9",
	}
}

// world is the network outside.
type world struct {
	ns    *os.File
	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey
	caPEM []byte

	mu    sync.Mutex
	zone  map[string][]string // addresses by name
	asked []string            // names that the name server was asked for
	seen  []string            // METHOD host path of HTTP requests, with their Authorization
	model *model              // what stands in for models' APIs; nil for none

	closers []io.Closer
}

func newWorld() (*world, error) {
	script := `
ip netns add world
ip link add up0 type veth peer name w0 netns world
sysctl -q -w net.ipv6.conf.up0.accept_dad=0
ip netns exec world sysctl -q -w net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.w0.accept_dad=0 net.ipv4.ip_forward=1
ip addr add 203.0.113.1/30 dev up0
ip -6 addr add 2a00:1::1/64 dev up0 nodad
ip link set up0 up
ip -n world addr add 203.0.113.2/30 dev w0
ip -n world -6 addr add 2a00:1::2/64 dev w0 nodad
ip -n world link set w0 up
ip -n world link set lo up
ip route add default via 203.0.113.2
ip -6 route add default via 2a00:1::2
ip -n world route add default via 203.0.113.1
ip -n world -6 route add default via 2a00:1::1
`
	for _, a := range worldAddresses() {
		script += "ip -n world addr add " + a + " dev lo" + map[bool]string{true: " nodad"}[strings.Contains(a, ":")] + "\n"
	}
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make the world: %w\n%s", err, out)
	}
	if err := os.WriteFile("/etc/resolv.conf", []byte("nameserver "+resolver4+"\n"), 0o644); err != nil {
		return nil, err
	}
	ns, err := os.Open("/run/netns/" + worldName)
	if err != nil {
		return nil, err
	}
	w := &world{ns: ns, zone: map[string][]string{
		"example.com": {public4}, "www.example.com": {public4}, "other.test": {public4}, "dual.test": {public4, public6},
		"six.test": {public6}, "packages.test": {public4b}, "quic.test": {public4}, "private.example.com": {public4b}, "api.test": {public4b}, "git.test": {public4}, "down.test": {"93.184.216.99"},
		"private.test": {"10.9.9.9"}, "metadata.test": {"169.254.169.254"}, "metadata6.test": {"fd00:ec2::254"},
		"mixed.test": {"10.9.9.9", public4}, "mapped.test": {"::ffff:169.254.169.254"}, "nat64.test": {"64:ff9b::a9fe:a9fe"},
		"loop.test": {"127.0.0.1"}, "self.test": {"203.0.113.1"}, "ula.test": {"fd99::9"}, "cgnat.test": {"100.64.9.9"},
	}}
	if err := w.makeCA(); err != nil {
		return nil, err
	}
	return w, w.serve()
}

func (w *world) close() error {
	for _, c := range w.closers {
		c.Close()
	}
	w.ns.Close()
	out, err := exec.Command("sh", "-ec", "ip link del up0; ip netns del world; rmdir /run/netns 2>/dev/null || true").CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove the world: %w\n%s", err, out)
	}
	// `ip netns` makes its directory a mount point.
	if err := unix.Unmount("/run/netns", unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// within runs f in the world, on a thread that is thrown away. What f opens stays there.
func (w *world) within(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(w.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func (w *world) listen(address string) (l net.Listener, err error) {
	err = w.within(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err == nil {
		w.closers = append(w.closers, l)
	}
	return l, err
}

func (w *world) serve() error {
	var packets net.PacketConn
	if err := w.within(func() (err error) {
		packets, err = net.ListenPacket("udp", ":53")
		return err
	}); err != nil {
		return err
	}
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(w.answer)}
	go server.ActivateAndServe() //nolint:errcheck // ends with its socket
	w.closers = append(w.closers, packets)
	for _, port := range []string{":80", ":8080", ":3128"} {
		l, err := w.listen(port)
		if err != nil {
			return err
		}
		go http.Serve(l, http.HandlerFunc(w.web)) //nolint:errcheck,gosec // likewise
	}
	l, err := w.listen(":443")
	if err != nil {
		return err
	}
	secure := &http.Server{Handler: http.HandlerFunc(w.web), TLSConfig: &tls.Config{GetCertificate: w.certificate}, ErrorLog: log.New(io.Discard, "", 0)} //nolint:gosec // a test
	go secure.ServeTLS(l, "", "")                                                                                                                         //nolint:errcheck // likewise
	for port, banner := range map[string]string{":22": "SSH-2.0-world\r\n", ":5432": "hello from a database\n"} {
		l, err := w.listen(port)
		if err != nil {
			return err
		}
		go speakFirst(l, banner)
	}
	return nil
}

// speakFirst sends a banner and echoes what comes.
func speakFirst(l net.Listener, banner string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.WriteString(c, banner)                               //nolint:errcheck // a test's client
			io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) //nolint:errcheck // likewise; without a pipe for each
		}()
	}
}

func (w *world) answer(rw dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	name := strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))
	w.mu.Lock()
	w.asked = append(w.asked, name)
	addrs, ok := w.zone[name]
	w.mu.Unlock()
	if !ok && !strings.HasSuffix(name, ".wild.test") {
		m.Rcode = dns.RcodeNameError
	} else if !ok {
		addrs = []string{public4}
	}
	for _, a := range addrs {
		kind := "A"
		if strings.Contains(a, ":") {
			kind = "AAAA"
		}
		if dns.TypeToString[q.Question[0].Qtype] == kind {
			rr, err := dns.NewRR(fmt.Sprintf("%s 30 IN %s %s", q.Question[0].Name, kind, a))
			if err == nil {
				m.Answer = append(m.Answer, rr)
			}
		}
	}
	rw.WriteMsg(m) //nolint:errcheck // a test's client
}

// web says who was asked for what.
func (w *world) web(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.seen = append(w.seen, fmt.Sprintf("%s %s%s %s", r.Method, r.Host, r.URL.RequestURI(), r.Header.Get("Authorization")))
	m := w.model
	w.mu.Unlock()
	if h := m.handler(r); h != nil {
		h(rw, r)
		return
	}
	if user, password, _ := r.BasicAuth(); r.Host == "private.example.com" {
		if user != "robot" || password != worldSecret {
			rw.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			http.Error(rw, "who are you?", http.StatusUnauthorized)
			return
		}
		if rest, ok := strings.CutPrefix(r.URL.Path, "/moved/"); ok {
			http.Redirect(rw, r, "https://"+r.Host+"/"+rest+"?"+r.URL.RawQuery, http.StatusFound)
			return
		}
	}
	if h := w.packages(r); h != nil {
		h(rw, r)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/repo.git/") {
		http.FileServer(http.Dir(box.Dir)).ServeHTTP(rw, r)
		return
	}
	if r.Host == "quic.test" { // a server that offers QUIC, and a page that asks it again
		rw.Header().Set("Alt-Svc", `h3=":443"; ma=3600`)
		if r.URL.Path == "/page" {
			rw.Header().Set("Content-Type", "text/html")
			io.WriteString(rw, `<body><script>fetch("/first").then(()=>fetch("/second")).then(r=>r.text()).then(t=>{document.body.innerText=t})</script>`) //nolint:errcheck // a test's client
			return
		}
	}
	if r.Host == "api.test" && r.Method == http.MethodPost { // a model's answer comes in pieces
		for _, word := range []string{"one", "two", "three"} {
			fmt.Fprintf(rw, "data: %s\n\n", word)
			rw.(http.Flusher).Flush()
		}
		return
	}
	if target := r.URL.Query().Get("redirect"); target != "" {
		http.Redirect(rw, r, target, http.StatusFound)
		return
	}
	fmt.Fprintf(rw, "world: %s %s\n", r.Host, r.URL.Path)
}

// name lets the name server know of a name.
func (w *world) name(name string, addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.zone[name] = addrs
}

func (w *world) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.seen...)
}

func (w *world) questions() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.asked...)
}

func (w *world) makeCA() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return err
	}
	w.ca, err = x509.ParseCertificate(der)
	w.caKey, w.caPEM = key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return err
}

// certificate makes a certificate for whatever name is asked for.
func (w *world) certificate(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	name := h.ServerName
	if name == "" {
		name = "nameless.test"
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, t, w.ca, &key.PublicKey, w.caKey)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// folder makes a workspace with the authority's certificate and the clients in it that no distribution has.
func (w *world) folder(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "ca.pem"), w.caPEM, 0o644), os.WriteFile(filepath.Join(dir, "Get.java"), []byte(getJava), 0o644),
		place(self, filepath.Join(dir, "client")),
	)
}

// place links a program, or copies it to another file system.
func place(program, to string) error {
	if os.Link(program, to) == nil {
		return nil
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// marshalKey is the private key of a certificate in PEM.
func marshalKey(c *tls.Certificate) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}
