package network

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
)

// packages serves an index in the simple format that pip reads, with one package.
func (w *world) packages(r *http.Request) http.HandlerFunc {
	if !strings.HasPrefix(r.Host, "packages.") && (r.Host != "private.example.com" || strings.HasPrefix(r.URL.Path, "/repo.git/")) {
		return nil
	}
	const wheel = "greeting-1.0-py3-none-any.whl"
	switch r.URL.Path {
	case "/simple/greeting/":
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(rw, `<!DOCTYPE html><html><body><a href="/files/%s">%s</a></body></html>`, wheel, wheel)
		}
	case "/files/" + wheel:
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Write(wheelFile()) //nolint:errcheck // a test's client
		}
	}
	return npmRegistry(r)
}

// npmRegistry serves one package as npm's registries do, below /npm/.
func npmRegistry(r *http.Request) http.HandlerFunc {
	const tarball = "/npm/greeting/-/greeting-1.0.0.tgz"
	switch r.URL.Path {
	case "/npm/greeting":
		return func(rw http.ResponseWriter, _ *http.Request) {
			sum := sha512.Sum512(npmPackage())
			rw.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(rw, `{"name": "greeting", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "greeting", "version": "1.0.0", "dist": {"tarball": "https://%s%s", "integrity": "sha512-%s"}}}}`,
				r.Host, tarball, base64.StdEncoding.EncodeToString(sum[:]))
		}
	case tarball:
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Write(npmPackage()) //nolint:errcheck // a test's client
		}
	}
	return http.NotFound
}

func npmPackage() []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	archive := tar.NewWriter(z)
	for _, f := range [][2]string{
		{"package/package.json", `{"name": "greeting", "version": "1.0.0", "main": "index.js"}`},
		{"package/index.js", "module.exports = 'installed by npm over TLS'\n"},
	} {
		if archive.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))}) == nil {
			archive.Write([]byte(f[1])) //nolint:errcheck // to memory
		}
	}
	archive.Close()
	z.Close()
	return b.Bytes()
}

func wheelFile() []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	const info = "greeting-1.0.dist-info/"
	for _, f := range [][2]string{
		{"greeting.py", "WORD = 'installed over TLS'\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", "greeting.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err == nil {
			w.Write([]byte(f[1])) //nolint:errcheck // to memory
		}
	}
	z.Close()
	return b.Bytes()
}
