package network

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net/http"
	"strings"
)

// packages serves an index in the simple format that pip reads, with one package.
func (w *world) packages(r *http.Request) http.HandlerFunc {
	if !strings.HasPrefix(r.Host, "packages.") {
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
	return http.NotFound
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
	z.Close() //nolint:errcheck // to memory
	return b.Bytes()
}
