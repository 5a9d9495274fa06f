package network

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// client is what this program does in a task: it gets a URL as Go's clients do, with QUIC first.
func client(target string) (exit int) {
	if err := get(target); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func get(target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	// A client of HTTP/3 goes on to TCP once it hears that there is no way.
	if err := tryQUIC(u.Hostname()); err != nil {
		fmt.Println("refused:", err)
	} else {
		return errors.New("a datagram left")
	}
	pem, err := os.ReadFile("ca.pem")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	c := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}}
	r, err := c.Get(target)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.Copy(os.Stdout, r.Body)
	return err
}

// tryQUIC sends the first datagram of a connection: a long header of version 1 and padding. Nobody answers one that has
// no more than that, so no error at all means that it left.
func tryQUIC(host string) error {
	c, err := net.Dial("udp", net.JoinHostPort(host, "443"))
	if err != nil {
		return err
	}
	defer c.Close()
	initial := append([]byte{0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e}, make([]byte, 1182)...)
	if _, err := c.Write(initial); err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // Read says what is wrong
	_, err = c.Read(make([]byte, 1500))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}
