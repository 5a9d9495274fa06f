package container

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // what the format has
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"time"
)

// trustStorePassword is what everybody has for a store in which nothing is secret.
const trustStorePassword = "changeit"

// trustStore writes the certificates of a PEM bundle as a key store of Java's own format (JKS), which every JVM reads
// without being told that it is no PKCS #12 (keystore.type.compat) and without a password. What is no certificate is left
// out: the JVM would refuse the whole store. Source: the format as OpenJDK's sun.security.provider.JavaKeyStore has it.
func trustStore(bundle []byte, made time.Time) []byte {
	const magic, version, trustedCertificate = 0xfeedfeed, 2, 2
	certificates := certificatesOf(bundle)
	be := binary.BigEndian
	out := be.AppendUint32(be.AppendUint32(nil, magic), version)
	out = be.AppendUint32(out, uint32(len(certificates))) //nolint:gosec // a few hundred
	text := func(s string) { out = append(be.AppendUint16(out, uint16(len(s))), s...) }
	for i, c := range certificates {
		out = be.AppendUint32(out, trustedCertificate)
		text("agentsafe-" + strconv.Itoa(i))
		out = be.AppendUint64(out, uint64(made.UnixMilli())) //nolint:gosec // after 1970
		text("X.509")
		out = append(be.AppendUint32(out, uint32(len(c))), c...) //nolint:gosec // of a bounded file
	}
	h := sha1.New() //nolint:gosec // a check of the file's integrity for who asks for it, with a password that is known
	for _, c := range []byte(trustStorePassword) {
		h.Write([]byte{0, c})
	}
	h.Write([]byte("Mighty Aphrodite"))
	h.Write(out)
	return h.Sum(out)
}

// certificatesOf returns what is between the lines of a PEM bundle that say certificate, decoded.
func certificatesOf(bundle []byte) [][]byte {
	begin, end := []byte("-----BEGIN CERTIFICATE-----"), []byte("-----END CERTIFICATE-----")
	var out [][]byte
	for {
		_, after, found := bytes.Cut(bundle, begin)
		text, rest, ended := bytes.Cut(after, end)
		if !found || !ended {
			return out
		}
		bundle = rest
		plain := bytes.Join(bytes.Fields(text), nil)
		der := make([]byte, base64.StdEncoding.DecodedLen(len(plain)))
		const sequence = 0x30 // of ASN.1: a certificate is one
		if n, err := base64.StdEncoding.Decode(der, plain); err == nil && n > 0 && der[0] == sequence {
			out = append(out, der[:n])
		}
	}
}
