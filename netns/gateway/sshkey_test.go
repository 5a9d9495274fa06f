package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"testing"
)

func sshString(b ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func packet(payload ...byte) []byte {
	const padding = 7
	out := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))
	return append(append(append(out, padding), payload...), make([]byte, padding)...)
}

// serverExchange is what a server says until encryption begins.
func serverExchange(key []byte, group bool) []byte {
	out := []byte("welcome\r\nSSH-2.0-test\r\n")
	out = append(out, packet(append([]byte{20}, make([]byte, 200)...)...)...) // KEXINIT
	if group {
		out = append(out, packet(bytes.Join([][]byte{{31}, sshString(append([]byte{0, 0xff}, make([]byte, 255)...)...), sshString(2)}, nil)...)...)
		out = append(out, packet(bytes.Join([][]byte{{33}, sshString(key...), sshString(1, 2), sshString(3)}, nil)...)...)
	} else {
		out = append(out, packet(bytes.Join([][]byte{{31}, sshString(key...), sshString(1, 2), sshString(3)}, nil)...)...)
	}
	return append(out, packet(sshNewKeys)...)
}

func hostKey(seed byte) (blob []byte, fingerprint string) {
	blob = append(sshString([]byte("ssh-ed25519")...), sshString(bytes.Repeat([]byte{seed}, 32)...)...)
	sum := sha256.Sum256(blob)
	return blob, "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// feed gives a filter bytes in pieces and returns what it lets pass.
func feed(f filter, data []byte, piece int) (passed []byte, done bool, err error) {
	var held []byte
	for len(data) > 0 && !done {
		n := min(piece, len(data))
		held, data = append(held, data[:n]...), data[n:]
		var pass int
		pass, done, err = f(held)
		if err != nil {
			return passed, false, err
		}
		passed, held = append(passed, held[:pass]...), held[pass:]
	}
	return passed, done, nil
}

func TestHostKeyFilter(t *testing.T) {
	key, good := hostKey(1)
	_, other := hostKey(2)
	for _, group := range []bool{false, true} {
		data := serverExchange(key, group)
		for _, piece := range []int{1, 7, len(data)} {
			passed, done, err := feed(hostKeyFilter([]string{other, good}), data, piece)
			if err != nil || !done || !bytes.HasPrefix(data, passed) {
				t.Errorf("group %v, pieces of %d: done %v, %v", group, piece, done, err)
			}
			passed, done, err = feed(hostKeyFilter([]string{other}), data, piece)
			if err == nil || done || !strings.Contains(err.Error(), good) {
				t.Errorf("another key, group %v, pieces of %d: done %v, %v", group, piece, done, err)
			}
			if bytes.Contains(passed, key) {
				t.Error("the reply with another key passes")
			}
		}
	}
	for name, data := range map[string][]byte{
		"no key":           append([]byte("SSH-2.0-x\r\n"), packet(sshNewKeys)...),
		"no version":       bytes.Repeat([]byte("x"), sshMaxBanner+1),
		"giant packet":     append([]byte("SSH-2.0-x\r\n"), 0xff, 0xff, 0xff, 0xff, 0),
		"padding too long": append([]byte("SSH-2.0-x\r\n"), 0, 0, 0, 8, 200, 31, 0, 0, 0, 0, 0, 0),
		"damaged reply":    append([]byte("SSH-2.0-x\r\n"), packet(31, 0xff, 0, 0, 0)...),
	} {
		if _, done, err := feed(hostKeyFilter([]string{good}), data, len(data)); err == nil {
			t.Errorf("%s: done %v and no error", name, done)
		}
	}
}

// Whatever a server says and however it is cut: with the right key alone it is let through.
func FuzzSSHServer(f *testing.F) {
	key, good := hostKey(1)
	f.Add(serverExchange(key, false), 5)
	f.Add(serverExchange(key, true), 1000)
	f.Add([]byte("SSH-2.0-x\r\n\x00\x00\x00\x02\x00\x1f"), 3)
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		if piece = max(1, piece); len(data)/piece > 1<<12 {
			return
		}
		passed, done, err := feed(hostKeyFilter([]string{good}), data, piece)
		if !bytes.HasPrefix(data, passed) {
			t.Errorf("%q becomes %q", data, passed)
		}
		if done && (err != nil || !bytes.Contains(data, key)) {
			t.Errorf("a server without the key passes: %v", err)
		}
	})
}

func FuzzSniff(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte("SSH-2.0-x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		// What was recognised stays what it is when more comes.
		for n := range data {
			if was := sniff(data[:n]); was != "" && sniff(data) != was {
				t.Fatalf("%q is %s, %q is %s", data[:n], was, data, sniff(data))
			}
		}
	})
}
