package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOutProxy(t *testing.T) {
	for _, tc := range []struct {
		n    HostNetwork
		want string
	}{
		{HostNetwork{}, ""},
		{HostNetwork{Proxy: "http://proxy.example.com:3128", NoProxy: []string{"*.corp.example", "git.corp.example", "10.0.0.0/8", "fd00:1::/64", "192.0.2.7"}}, ""},
		{HostNetwork{Proxy: "http://[fd00::1]:3128/", ProxyAuth: "/etc/agentsafe/auth"}, ""},
		{HostNetwork{Proxy: "https://proxy.example.com:3128"}, ""},
		{HostNetwork{Proxy: "https://proxy.example.com"}, "https://HOST:PORT"},
		{HostNetwork{Proxy: "http://user:word@proxy.example.com:3128"}, "proxyAuth"},
		{HostNetwork{Proxy: "http://proxy.example.com"}, "http://HOST:PORT"},
		{HostNetwork{Proxy: "http://proxy.example.com:0"}, "http://HOST:PORT"},
		{HostNetwork{Proxy: "http://proxy.example.com:3128/x"}, "http://HOST:PORT"},
		{HostNetwork{Proxy: "socks5://proxy.example.com:1080"}, "http://HOST:PORT"},
		{HostNetwork{Proxy: "proxy.example.com:3128"}, "http://HOST:PORT"},
		{HostNetwork{Proxy: "http://a..b:3128"}, "proxy"},
		{HostNetwork{Proxy: "http://p.example:3128", NoProxy: []string{"a b"}}, "noProxy"},
		{HostNetwork{Proxy: "http://p.example:3128", ProxyAuth: "auth"}, "absolute"},
		{HostNetwork{NoProxy: []string{"a.example"}}, "there is none"},
	} {
		_, err := tc.n.outProxy()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v: %v, want %q", tc.n, err, tc.want)
		}
	}
}

func TestHostProxy_ForGateway(t *testing.T) {
	auth := filepath.Join(t.TempDir(), "auth")
	if err := os.WriteFile(auth, []byte("user:word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &HostProxy{Host: "10.0.0.9", Port: 3128, AuthFile: auth}
	if w, err := p.forGateway(true); err != nil || w.Authorization != "user:word" || w.Loopback {
		t.Errorf("%+v, %v", w, err)
	}
	p = &HostProxy{Host: "127.0.0.1", Port: 3128}
	if _, err := p.forGateway(true); err == nil || !strings.Contains(err.Error(), "network.proxy") {
		t.Errorf("the container's loopback: %v", err)
	}
	if w, err := p.forGateway(false); err != nil || !w.Loopback {
		t.Errorf("%+v, %v", w, err)
	}
	if err := os.Chmod(auth, 0o644); err != nil {
		t.Fatal(err)
	}
	p = &HostProxy{Host: "10.0.0.9", Port: 3128, AuthFile: auth}
	if _, err := p.forGateway(true); err == nil || !strings.Contains(err.Error(), "proxyAuth") {
		t.Errorf("a password for everybody: %v", err)
	}
}
