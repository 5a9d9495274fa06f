package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns/gateway"
	"github.com/agentsafe/agentsafe/netns/gateway/confine"
	"github.com/agentsafe/agentsafe/netns/gateway/inspect"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// version and commit are set by the linker.
var version, commit = "0.1.0-dev", "" //nolint:gochecknoglobals // the linker needs a variable

// maxConfigBytes bounds the configuration.
const maxConfigBytes = 4 << 20

// maxPEMBytes bounds a certificate with its chain, and a key.
const maxPEMBytes = 1 << 20

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("agentsafe-gateway", strings.TrimSpace(version+" "+commit))
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "agentsafe-gateway:", err)
		os.Exit(1)
	}
}

func run() error {
	files, err := inherited(os.Getenv("LISTEN_FDNAMES"))
	if err != nil {
		return err
	}
	defer files.config.Close()
	g, sockets, err := files.prepare()
	if err != nil {
		fmt.Fprintln(files.config, err)
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		awaitEnd(files.task)
		cancel()
	}()
	io.WriteString(files.config, "ready\n") //nolint:errcheck // whoever started it need not wait for that
	files.config.Close()
	return g.Run(ctx, sockets)
}

// descriptors are what this process was given.
type descriptors struct {
	config, task, log, control *os.File
	refused                    *os.File // nil where the kernel tells of no refused packets
	execs                      *os.File // nil where it can't be told whose a connection is
	authority, authorityKey    *os.File // nil where TLS is never inspected
	tcp, dns, dnstcp, diag     []*os.File
}

// inherited takes the descriptors over, and refuses to go on with less than a gateway needs.
func inherited(names string) (*descriptors, error) {
	const first = 3
	d := &descriptors{}
	for i, name := range strings.Split(names, ":") {
		unix.CloseOnExec(first + i)
		f := os.NewFile(uintptr(first+i), name)
		switch name {
		case "config":
			d.config = f
		case "task":
			d.task = f
		case "log":
			d.log = f
		case "control":
			d.control = f
		case "refused":
			d.refused = f
		case "diag":
			d.diag = append(d.diag, f)
		case "execs":
			d.execs = f
		case "authority":
			d.authority = f
		case "authoritykey":
			d.authorityKey = f
		case "tcp":
			d.tcp = append(d.tcp, f)
		case "dns":
			d.dns = append(d.dns, f)
		case "dnstcp":
			d.dnstcp = append(d.dnstcp, f)
		default:
			return nil, fmt.Errorf("descriptor %d: %q is not known", first+i, name)
		}
	}
	if d.config == nil || d.task == nil || len(d.tcp) == 0 || len(d.dns) == 0 {
		return nil, errors.New("this program is started by agentsafe, with its sockets")
	}
	return d, nil
}

// prepare does everything that can fail or that needs files, and confines the process.
func (d *descriptors) prepare() (*gateway.Gateway, gateway.Sockets, error) {
	var s gateway.Sockets
	if err := unprivileged(); err != nil {
		return nil, s, err
	}
	if err := confine.Limits(); err != nil {
		return nil, s, err
	}
	var c wire.Config
	if err := json.NewDecoder(io.LimitReader(d.config, maxConfigBytes)).Decode(&c); err != nil {
		return nil, s, fmt.Errorf("read configuration: %w", err)
	}
	trust, err := d.trust(&c)
	if err != nil {
		return nil, s, err
	}
	g, err := gateway.New(c, d.log, trust)
	if err != nil {
		return nil, s, err
	}
	if s, err = d.sockets(); err != nil {
		return nil, s, err
	}
	return g, s, confine.Process()
}

// trust reads what the gateway's own TLS needs, while files can be read.
func (d *descriptors) trust(c *wire.Config) (t gateway.Trust, err error) {
	if len(c.Credentials) > 0 || d.authority != nil || c.Proxy != nil && c.Proxy.TLS {
		if t.Roots, err = x509.SystemCertPool(); err != nil {
			return t, fmt.Errorf("read certificate authorities of the host: %w", err)
		}
	}
	if d.authority == nil || d.authorityKey == nil {
		return t, nil
	}
	defer d.authority.Close()
	defer d.authorityKey.Close()
	cert, err := io.ReadAll(io.LimitReader(d.authority, maxPEMBytes))
	if err != nil {
		return t, fmt.Errorf("read the authority for inspection: %w", err)
	}
	key, err := io.ReadAll(io.LimitReader(d.authorityKey, maxPEMBytes))
	if err != nil {
		return t, fmt.Errorf("read the key of the authority for inspection: %w", err)
	}
	defer clear(key)
	if t.Authority, err = inspect.ParseAuthority(cert, key); err != nil {
		return t, fmt.Errorf("the authority for inspection (network.inspectCertificate and inspectKey of the host's configuration): %w", err)
	}
	return t, nil
}

func (d *descriptors) sockets() (s gateway.Sockets, err error) {
	s.TCP, s.Refused, s.Diag, s.Execs = d.tcp, d.refused, d.diag, d.execs
	for _, f := range d.dns {
		p, err := net.FilePacketConn(f)
		if err != nil {
			return s, fmt.Errorf("socket dns: %w", err)
		}
		f.Close()
		s.DNS = append(s.DNS, p)
	}
	for _, f := range d.dnstcp {
		l, err := net.FileListener(f)
		if err != nil {
			return s, fmt.Errorf("socket dnstcp: %w", err)
		}
		f.Close()
		s.DNSTCP = append(s.DNSTCP, l)
	}
	if d.control != nil {
		l, err := net.FileListener(d.control)
		if err != nil {
			return s, fmt.Errorf("socket control: %w", err)
		}
		d.control.Close()
		control, ok := l.(*net.UnixListener)
		if !ok {
			return s, fmt.Errorf("socket control: a %T", l)
		}
		s.Control = control
		s.Control.SetUnlinkOnClose(false)
	}
	return s, nil
}

// unprivileged refuses to face hostile bytes with power over the host.
func unprivileged() error {
	if os.Getuid() == 0 || os.Geteuid() == 0 {
		return errors.New("running as uid 0: this program wants a uid of its own")
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if data[0].Permitted|data[1].Permitted != 0 {
		return errors.New("running with capabilities: this program wants none")
	}
	return nil
}

// awaitEnd returns when the process of a pidfd has ended.
func awaitEnd(pidfd *os.File) {
	// Nothing else refers to it: collected, it would be closed, and its number be another file's.
	defer runtime.KeepAlive(pidfd)
	poll := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors fit
	for {
		if n, err := unix.Ppoll(poll, nil, nil); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
