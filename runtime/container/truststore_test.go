package container

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTrustStore: Java's own tool reads it, with its password and without, and finds every certificate.
func TestTrustStore(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var bundle []byte
	for i := range 3 {
		template := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour), IsCA: true}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		bundle = append(append(bundle, "# a comment\n"...), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	bundle = append(bundle, "-----BEGIN CERTIFICATE-----\nno base64!\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nAAAA"...)
	store := trustStore(bundle, time.Now())
	if n := len(certificatesOf(bundle)); n != 3 {
		t.Errorf("%d certificates", n)
	}
	keytool, err := exec.LookPath("keytool")
	if err != nil {
		t.Skip("probe keytool: " + err.Error())
	}
	path := filepath.Join(t.TempDir(), "trusted.jks")
	if err := os.WriteFile(path, store, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, password := range []string{trustStorePassword, ""} {
		cmd := exec.CommandContext(t.Context(), keytool, "-list", "-keystore", path)
		if cmd.Stdin = strings.NewReader("\n"); password != "" {
			cmd.Args = append(cmd.Args, "-storepass", password)
		}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Count(string(out), "trustedCertEntry") != 3 {
			t.Errorf("password %q: %v\n%s", password, err, out)
		}
	}
}
