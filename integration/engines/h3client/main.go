package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/quic-go/quic-go/http3"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "serve":
		err = serve(args[1], args[2])
	case len(args) == 2:
		err = run(args[0], args[1])
	default:
		err = errors.New("usage: h3client URL FILE-OF-AUTHORITIES, or h3client serve CERTIFICATE KEY")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "h3client:", err)
		os.Exit(1)
	}
}

func serve(cert, key string) error {
	s := &http3.Server{Addr: ":443", Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(rw, "world by QUIC:", r.Host, r.URL.Path)
	})}
	return s.ListenAndServeTLS(cert, key)
}

// patience is beyond every time-out of QUIC's own, so that a wait is seen as one.
const patience = 30 * time.Second

func run(url, authorities string) error {
	pem, err := os.ReadFile(authorities)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	trust := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	quic := &http3.Transport{TLSClientConfig: trust.Clone()}
	defer quic.Close()
	body, err := get(quic, url)
	if err == nil {
		fmt.Println("QUIC: connected")
		fmt.Print(body)
		return nil
	}
	var waited net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &waited) && waited.Timeout() {
		fmt.Println("QUIC: waited in vain:", err)
	} else {
		fmt.Println("QUIC: refused:", err)
	}
	tcp := &http.Transport{TLSClientConfig: trust, ForceAttemptHTTP2: true}
	defer tcp.CloseIdleConnections()
	if body, err = get(tcp, url); err != nil {
		return err
	}
	fmt.Print(body)
	return nil
}

func get(transport http.RoundTripper, url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.Proto + " " + string(body), err
}
