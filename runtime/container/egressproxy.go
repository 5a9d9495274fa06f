package container

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// HostProxy is the proxy of [HostNetwork], taken apart.
type HostProxy struct {
	Host   string   `json:"host"`
	Port   uint16   `json:"port"`
	Except []string `json:"except,omitempty"`
	// TLS says that the proxy itself is spoken to by TLS.
	TLS bool `json:"tls,omitempty"`
	// AuthFile has USER:PASSWORD; it is read when the gateway starts.
	AuthFile string `json:"authFile,omitempty"`
}

// outProxy checks what the configuration says of a proxy; nil is none. Errors begin with the key.
func (n *HostNetwork) outProxy() (*HostProxy, error) {
	if n.Proxy == "" {
		if len(n.NoProxy) > 0 || n.ProxyAuth != "" {
			return nil, errors.New("proxy: noProxy and proxyAuth are for one, and there is none")
		}
		return nil, nil //nolint:nilnil // no proxy is none
	}
	u, err := url.Parse(n.Proxy)
	if err != nil {
		return nil, fmt.Errorf("proxy: %q is not http://HOST:PORT or https://HOST:PORT", n.Proxy)
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	switch {
	case u.User != nil:
		return nil, errors.New("proxy: a password in the address could be read by everybody: put USER:PASSWORD into a file, and its name into proxyAuth")
	case err != nil || port == 0 || u.Scheme != "http" && u.Scheme != "https" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("proxy: %q is not http://HOST:PORT or https://HOST:PORT", n.Proxy)
	case n.ProxyAuth != "" && !filepath.IsAbs(n.ProxyAuth):
		return nil, fmt.Errorf("proxyAuth: %q is not an absolute path", n.ProxyAuth)
	}
	out := &HostProxy{Host: u.Hostname(), Port: uint16(port), Except: n.NoProxy, AuthFile: n.ProxyAuth, TLS: u.Scheme == "https"}
	if _, err := netip.ParseAddr(out.Host); err != nil {
		if out.Host, err = egress.ParseHost(out.Host); err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
	}
	for _, e := range n.NoProxy {
		if _, err := egress.ParseRule(wire.ExceptRule(e)); err != nil {
			return nil, fmt.Errorf("noProxy: %q is neither a name, nor *.SUFFIX, nor a range of addresses: %w", e, err)
		}
	}
	return out, nil
}

// forGateway is what the gateway is told. linked says that it dials through the container's network.
func (p *HostProxy) forGateway(linked bool) (*wire.Proxy, error) {
	if p == nil {
		return nil, nil //nolint:nilnil // no proxy is none
	}
	if a, err := netip.ParseAddr(p.Host); err == nil && linked && (netns.ClassOf(a) == netns.ClassLoopback || a.IsUnspecified()) {
		return nil, fmt.Errorf("the proxy %s of the host's configuration (network.proxy) can't be reached by a container with a network of its own, "+
			"whose loopback that is: have it listen on an address that containers reach, and name that", p.Host)
	}
	out := &wire.Proxy{Host: p.Host, Port: p.Port, Except: p.Except, Loopback: !linked, TLS: p.TLS}
	if p.AuthFile != "" {
		text, err := readSecret(p.AuthFile)
		if err != nil {
			return nil, fmt.Errorf("network.proxyAuth of the host's configuration: %w", err)
		}
		out.Authorization = string(bytes.TrimSpace(text))
	}
	return out, nil
}
