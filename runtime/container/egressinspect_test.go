package container

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/profiles"
)

// Nothing but the host's configuration turns inspection on, and a key that others could have is none.
func TestInspection(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "authority.pem"), filepath.Join(dir, "authority.key")
	for _, name := range []string{cert, key} {
		if err := os.WriteFile(name, []byte("PEM of "+filepath.Base(name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	asks := &profiles.Profile{Network: profiles.Network{Mode: profiles.NetworkGateway, Allow: []string{"a.test", "GET https://b.test"}}}
	silent := &profiles.Profile{Network: profiles.Network{Mode: profiles.NetworkGateway, Allow: []string{"a.test", "GET http://b.test", "https://c.test/"}}}
	on := HostNetwork{InspectCertificate: cert, InspectKey: key}
	for _, n := range []*HostNetwork{{}, &on} {
		if i, err := n.inspection(silent, ConfigDir); i != nil || err != nil {
			t.Errorf("nobody asked: %v, %v", i, err)
		}
	}
	var refused *profiles.RefusedError
	if _, err := (&HostNetwork{}).inspection(asks, ConfigDir); !errors.As(err, &refused) || !strings.Contains(err.Error(), `"GET https://b.test"`) || !strings.Contains(refused.Allow, "inspectKey") {
		t.Errorf("it is off: %v", err)
	}
	i, err := on.inspection(asks, ConfigDir)
	if err != nil || i.Key != key {
		t.Fatalf("it is on: %v, %v", i, err)
	}
	if a, b, err := i.open(); err != nil || a.Close() != nil || b.Close() != nil {
		t.Error(err)
	}
	authority, bundle, err := i.certificates()
	if err != nil || string(authority) != "PEM of authority.pem\n" || !strings.HasSuffix(string(bundle), string(authority)) {
		t.Errorf("%q, %d bytes, %v", authority, len(bundle), err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(key, link); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []HostNetwork{
		{InspectKey: key},
		{InspectCertificate: cert},
		{InspectCertificate: "a.pem", InspectKey: key},
		{InspectCertificate: cert, InspectKey: link},
		{InspectCertificate: cert, InspectKey: dir},
		{InspectCertificate: cert, InspectKey: filepath.Join(dir, "none")},
		{InspectCertificate: link, InspectKey: key},
	} {
		if err := bad.checkInspection(); err == nil || !strings.Contains(err.Error(), "inspect") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o777} {
		if err := os.Chmod(key, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := on.inspection(asks, ConfigDir); err == nil || !strings.Contains(err.Error(), "nobody else can read or write") {
			t.Errorf("a key of mode %o: %v", mode, err)
		}
		if f, _, err := i.open(); err == nil {
			f.Close()
			t.Errorf("a key of mode %o is opened", mode)
		}
	}
}

func TestInspectEnv(t *testing.T) {
	p := &specs.Process{Env: []string{"SSL_CERT_FILE=/image/own.pem", "A=b"}}
	before := slices.Clone(p.Env)
	if inspectEnv(p, nil); !slices.Equal(p.Env, before) {
		t.Errorf("nothing is inspected: %v", p.Env)
	}
	inspectEnv(p, &Inspection{})
	for _, want := range []string{"A=b", "SSL_CERT_FILE=/dev/agentsafe/trusted.pem", "NODE_EXTRA_CA_CERTS=/dev/agentsafe/authority.pem"} {
		if !slices.Contains(p.Env, want) {
			t.Errorf("no %s in %v", want, p.Env)
		}
	}
	if slices.Contains(p.Env, before[0]) {
		t.Errorf("%v", p.Env)
	}
	const java = "-Djavax.net.ssl.trustStore=/dev/agentsafe/trusted.jks"
	for have, want := range map[string]string{"": java, "-Xmx1g": "-Xmx1g " + java, "-Xmx1g " + java: "-Xmx1g " + java} {
		p := &specs.Process{Env: []string{"JAVA_TOOL_OPTIONS=" + have}}
		if inspectEnv(p, &Inspection{}); !slices.Contains(p.Env, "JAVA_TOOL_OPTIONS="+want) {
			t.Errorf("%q: %v", have, p.Env)
		}
	}
}
