package network

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestQUIC: a client of HTTP/3 that reaches its server without the gateway is refused at once behind it, and goes on over
// TCP, where its name is judged.
func TestQUIC(t *testing.T) {
	programs, err := harness.H3Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	program, dir := filepath.Join(programs, "h3client"), box.TempDir(t)
	c, err := outside.certificate(&tls.ClientHelloInfo{ServerName: "quic.test"})
	if err != nil {
		t.Fatal(err)
	}
	key, err := marshalKey(c)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"cert": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), "key": key, "ca.pem": outside.caPEM,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := box.Start(t, harness.Cmd{Args: []string{"ip", "netns", "exec", worldName, program, "serve", dir + "/cert", dir + "/key"}, Timeout: 10 * time.Minute})
	t.Cleanup(func() { server.Stop(t) })
	// Without the gateway the same client gets there by QUIC: what follows is the gateway's doing.
	direct := harness.Result{}
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end) && !regexp.MustCompile("^QUIC: connected\nHTTP/3.0 world by QUIC: quic.test /x\n$").MatchString(direct.Stdout); {
		direct = box.Run(t, harness.Cmd{Args: []string{program, "https://quic.test/x", dir + "/ca.pem"}})
	}
	if direct.Exit != 0 {
		t.Fatalf("%v\n%s", direct, server.Output())
	}
	folder := box.TempDir(t)
	if err := errors.Join(outside.folder(folder), place(program, filepath.Join(folder, "h3client"))); err != nil {
		t.Fatal(err)
	}
	const script = "./h3client https://quic.test/x ca.pem && ./h3client https://other.test/x ca.pem"
	if r := runIn(t, folder, rules("quic.test"), script); !regexp.MustCompile("^QUIC: refused: .*\nHTTP/2.0 world: quic.test /x\n(QUIC: refused: .*\n)?$").MatchString(r.out.Stdout) || r.out.ExitCode == 0 {
		t.Errorf("%v", r)
	}
}
