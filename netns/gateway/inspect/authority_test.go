package inspect

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"
)

// pair makes a certificate for a key of its own, signed by itself, in PEM.
func pair(t testing.TB, key crypto.Signer, change func(*x509.Certificate)) (certPEM, keyPEM []byte) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "administrator's"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

func elliptical(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func authority(t testing.TB, change func(*x509.Certificate)) *Authority {
	t.Helper()
	a, err := ParseAuthority(pair(t, elliptical(t), change))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Certificates are for one name, short-lived, and good for those who trust the authority.
func TestCertificate(t *testing.T) {
	short, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.Signer{elliptical(t), short, edwards} {
		t.Run(fmt.Sprintf("%T", key), func(t *testing.T) {
			certPEM, keyPEM := pair(t, key, nil)
			a, err := ParseAuthority(certPEM, keyPEM)
			if err != nil {
				t.Fatal(err)
			}
			c, err := a.Certificate("api.test")
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(certPEM)
			if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "api.test"}); err != nil {
				t.Error(err)
			}
			for _, other := range []string{"www.api.test", "test", "other.test"} {
				if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: other}); err == nil {
					t.Errorf("it is good for %s", other)
				}
			}
			if c.Leaf.IsCA || c.Leaf.KeyUsage&x509.KeyUsageCertSign != 0 || time.Until(c.Leaf.NotAfter) > leafLife {
				t.Errorf("%+v", c.Leaf)
			}
			if again, err := a.Certificate("api.test"); err != nil || again != c {
				t.Errorf("it is made twice: %v", err)
			}
		})
	}
}

// An authority that signs for some names alone has clients refuse the others: the leaf is made, and is not good.
func TestNameConstraints(t *testing.T) {
	certPEM, keyPEM := pair(t, elliptical(t), func(c *x509.Certificate) {
		c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{"corp.test"}, true
	})
	a, err := ParseAuthority(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	for name, want := range map[string]bool{"api.corp.test": true, "api.test": false} {
		c, err := a.Certificate(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCertificate_Bounded(t *testing.T) {
	a := authority(t, nil)
	for i := range maxLeaves + 20 {
		if _, err := a.Certificate(fmt.Sprintf("n%d.test", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.leaves) > maxLeaves {
		t.Errorf("%d certificates are kept", len(a.leaves))
	}
	for _, name := range []string{"", "*.test", "127.0.0.1", "::1", "a b"} {
		if c, err := a.Certificate(name); err == nil {
			t.Errorf("%q: %v", name, c.Leaf.DNSNames)
		}
	}
}

// They are renewed long before their end, and never outlive the authority.
func TestCertificate_Time(t *testing.T) {
	a := authority(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(30 * time.Hour) })
	first, err := a.Certificate("api.test")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	a.now = func() time.Time { return start.Add(13 * time.Hour) }
	second, err := a.Certificate("api.test")
	if err != nil || second == first || second.Leaf.NotAfter.After(a.cert.NotAfter) {
		t.Errorf("%v %v", second, err)
	}
	a.now = func() time.Time { return start.Add(31 * time.Hour) }
	if _, err := a.Certificate("other.test"); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("%v", err)
	}
}

func TestParseAuthority_Refuses(t *testing.T) {
	other, otherKey := pair(t, elliptical(t), nil)
	good, key := pair(t, elliptical(t), nil)
	for _, tc := range []struct {
		name      string
		cert, key []byte
		want      string
	}{
		{"nothing", nil, nil, "PEM"},
		{"no key", good, nil, "PEM"},
		{"another key", good, otherKey, "does not match"},
		{"another certificate", other, key, "does not match"},
	} {
		if _, err := ParseAuthority(tc.cert, tc.key); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	for want, change := range map[string]func(*x509.Certificate){
		"not that of an authority": func(c *x509.Certificate) { c.IsCA = false },
		"must not sign":            func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature },
		"has expired":              func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) },
		"is not valid before":      func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) },
	} {
		if _, err := ParseAuthority(pair(t, elliptical(t), change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
