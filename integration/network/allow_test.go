package network

import (
	"strings"
	"testing"
)

func TestAllowedNames(t *testing.T) {
	for _, tc := range []struct{ name, rule, script, want string }{
		{"TLS", "example.com", "curl -sS --cacert ca.pem https://example.com/x", "world: example.com /x"},
		{"HTTP", "http://example.com", "curl -sS http://example.com/x", "world: example.com /x"},
		{"another port", "http://example.com:8080", "curl -sS http://example.com:8080/x", "world: example.com:8080 /x"},
		{"below a wildcard", "*.example.com", "curl -sS --cacert ca.pem https://www.example.com/x", "world: www.example.com /x"},
		{"dual stack", "dual.test", "curl -sS --cacert ca.pem https://dual.test/x", "world: dual.test /x"},
		{"IPv6 alone", "six.test", "curl -sS --cacert ca.pem https://six.test/x", "world: six.test /x"},
		{"IPv4 client to an IPv6 server", "six.test", "curl -4 -sS --cacert ca.pem https://six.test/x", "world: six.test /x"},
		{"IPv6 client to an IPv4 server", "example.com", "curl -6 -sS --cacert ca.pem https://example.com/x", "world: example.com /x"},
		{"any protocol", "tcp://git.test:5432", "python3 -c 'import socket; s=socket.create_connection((\"git.test\",5432)); print(s.recv(99).decode())'", "hello from a database"},
		{"SSH", "ssh://git.test", "python3 -c 'import socket; s=socket.create_connection((\"git.test\",22)); s.sendall(b\"SSH-2.0-x\\r\\n\"); f=s.makefile(); print(f.readline()+f.readline())'", "SSH-2.0-world\nSSH-2.0-x"},
		{"redirect to an allowed name", "http://*.example.com", "curl -sSL 'http://www.example.com/?redirect=http://www.example.com/there'", "/there"},
		{"absolute form by an explicit proxy", "http://example.com", "curl -sS -x http://proxy.agentsafe.internal:3128 http://example.com/x", "world: example.com /x"},
		{"CONNECT by an explicit proxy", "example.com", "curl -sS --cacert ca.pem -x http://proxy.agentsafe.internal:3128 https://example.com/x", "world: example.com /x"},
		{"own loopback", "example.com", "python3 -m http.server 8000 >/dev/null 2>&1 & sleep 1; curl -sS -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/", "200"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := run(t, rules(tc.rule), tc.script)
			if r.out.ExitCode != 0 || !strings.Contains(strings.ReplaceAll(r.out.Stdout, "\r", ""), tc.want) {
				t.Errorf("want %q\n%v", tc.want, r)
			}
		})
	}
}

// An unmodified client that knows of no proxy.
func TestInstallPackage(t *testing.T) {
	r := run(t, rules("packages.test"), `
pip install --no-cache-dir --disable-pip-version-check --index-url https://packages.test/simple --cert ca.pem --target lib greeting >&2 &&
PYTHONPATH=lib python3 -c 'import greeting; print(greeting.WORD)'`)
	if r.out.ExitCode != 0 || r.out.Stdout != "installed over TLS\n" {
		t.Errorf("%v", r)
	}
}
