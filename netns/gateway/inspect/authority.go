package inspect

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"time"
)

// Bounds of the certificates that are made.
const (
	leafLife = 24 * time.Hour
	// clockSkew is how far the task's idea of the time may be behind.
	clockSkew = time.Hour
	maxLeaves = 1024
)

// Authority makes certificates. It may be used by any number of goroutines.
type Authority struct {
	cert   *x509.Certificate
	chain  [][]byte // cert and what certified it
	signer crypto.Signer
	key    *ecdsa.PrivateKey // of all leaves
	now    func() time.Time

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// ParseAuthority reads a certificate, which may be followed by those that lead to a root, and its private key, both in PEM.
// The error says what keeps them from being an authority.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	a := &Authority{cert: pair.Leaf, chain: pair.Certificate, now: time.Now, leaves: map[string]*tls.Certificate{}}
	var ok bool
	if a.signer, ok = pair.PrivateKey.(crypto.Signer); !ok {
		return nil, fmt.Errorf("a %T can't sign", pair.PrivateKey)
	}
	switch now := a.now(); {
	case !a.cert.BasicConstraintsValid || !a.cert.IsCA:
		return nil, errors.New("the certificate is not that of an authority (basicConstraints CA:TRUE)")
	case a.cert.KeyUsage != 0 && a.cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, errors.New("the certificate's key must not sign certificates (keyUsage keyCertSign)")
	case now.After(a.cert.NotAfter):
		return nil, fmt.Errorf("the certificate has expired on %s", a.cert.NotAfter.Format(time.DateOnly))
	case now.Before(a.cert.NotBefore):
		return nil, fmt.Errorf("the certificate is not valid before %s", a.cert.NotBefore.Format(time.DateOnly))
	}
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	// What can't be done is told now, not to the first client.
	if _, err = a.sign("authority.invalid"); err != nil {
		return nil, fmt.Errorf("sign a certificate with it: %w", err)
	}
	return a, nil
}

// Certificate returns the certificate that stands in for the destination of that name, which the caller has judged.
func (a *Authority) Certificate(name string) (*tls.Certificate, error) {
	if name == "" || net.ParseIP(name) != nil || strings.ContainsAny(name, "*/ ") {
		return nil, fmt.Errorf("a certificate for %q, which is no host name", name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if c := a.leaves[name]; c != nil && now.Before(c.Leaf.NotAfter.Add(-leafLife/2)) {
		return c, nil
	}
	if now.After(a.cert.NotAfter) {
		return nil, fmt.Errorf("the authority's certificate has expired on %s", a.cert.NotAfter.Format(time.DateOnly))
	}
	c, err := a.sign(name)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for %s: %w", name, err)
	}
	if len(a.leaves) >= maxLeaves {
		a.forget()
	}
	a.leaves[name] = c
	return c, nil
}

// forget makes room: the certificate that ends first goes. Making it again is cheap.
func (a *Authority) forget() {
	oldest := ""
	for name, c := range a.leaves {
		if oldest == "" || c.Leaf.NotAfter.Before(a.leaves[oldest].Leaf.NotAfter) {
			oldest = name
		}
	}
	delete(a.leaves, oldest)
}

func (a *Authority) sign(name string) (*tls.Certificate, error) {
	const serialBits = 127 // at most 20 bytes, positive. Source: RFC 5280, 4.1.2.2.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, err
	}
	now := a.now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"agentsafe inspection"}}, DNSNames: []string{name},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if template.NotBefore.Before(a.cert.NotBefore) {
		template.NotBefore = a.cert.NotBefore
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &a.key.PublicKey, a.signer)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: append([][]byte{der}, a.chain...), PrivateKey: a.key, Leaf: leaf}, nil
}
