package audit

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// KeyDir is where the host's key lies: a file with the key, or one with the command of an external signer.
const KeyDir = "/etc/agentsafe/evidence"

// Names below KeyDir.
const (
	KeyFile    = "key"         // "agentsafe-ed25519-v1 " and the seed in base64; root's alone
	PublicFile = "key.pub"     // "agentsafe-ed25519-v1-public " and the key in base64
	SignerFile = "signer.json" // {"command": ["/path", "arg"]}, used in place of a key
)

const (
	seedPrefix   = "agentsafe-ed25519-v1 "
	publicPrefix = "agentsafe-ed25519-v1-public "
)

// Signer signs what a statement's envelope says.
type Signer interface {
	// Sign returns the signature of data and the id of the key.
	Sign(data []byte) (sig []byte, keyID string, err error)
}

// KeyID names a key: the sha256 of its 32 bytes, in hex.
func KeyID(key ed25519.PublicKey) string { return hashOf(key) }

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

type localKey struct{ key ed25519.PrivateKey }

// Sign implements Signer.
func (k localKey) Sign(data []byte) ([]byte, string, error) {
	return ed25519.Sign(k.key, data), KeyID(k.key.Public().(ed25519.PublicKey)), nil //nolint:forcetypeassert // it is one
}

// commandSigner asks a program: data on its standard input, {"keyid": ..., "sig": base64} on its output.
type commandSigner struct{ argv []string }

const signTimeout = 30 * time.Second

// Sign implements Signer.
func (c commandSigner) Sign(data []byte) ([]byte, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), signTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Stdin, cmd.Env, cmd.Dir = bytes.NewReader(data), []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, "/"
	out, err := cmd.Output()
	if err != nil {
		return nil, "", fmt.Errorf("run %s: %w", c.argv[0], err)
	}
	var s Signature
	if err := json.Unmarshal(out, &s); err != nil {
		return nil, "", fmt.Errorf("read the answer of %s: %w", c.argv[0], err)
	}
	return s.Sig, s.KeyID, nil
}

// LoadSigner returns the host's signer. The error is os.ErrNotExist if there is none.
func LoadSigner(dir string) (Signer, error) {
	data, err := readPrivate(filepath.Join(dir, SignerFile))
	if err == nil {
		var c struct {
			Command []string `json:"command"`
		}
		if err := json.Unmarshal(data, &c); err != nil {
			return nil, fmt.Errorf("load signer: %w", err)
		}
		if len(c.Command) == 0 || !filepath.IsAbs(c.Command[0]) {
			return nil, errors.New("load signer: command: want an absolute path and arguments")
		}
		return commandSigner{c.Command}, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("load signer: %w", err)
	}
	data, err = readPrivate(filepath.Join(dir, KeyFile))
	if err != nil {
		return nil, fmt.Errorf("load key: %w", err)
	}
	seed, err := decodeKey(string(data), seedPrefix, ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("load key %s: %w", filepath.Join(dir, KeyFile), err)
	}
	return localKey{ed25519.NewKeyFromSeed(seed)}, nil
}

// readPrivate reads a file that root alone can write, and others can't read: whoever can, can sign.
func readPrivate(name string) ([]byte, error) {
	f, err := os.OpenFile(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	const others = 0o077
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Mode&others != 0 {
		return nil, fmt.Errorf("%s is not a file of root's alone (chmod 600)", name)
	}
	const maxKeyBytes = 4 << 10
	return io.ReadAll(io.LimitReader(f, maxKeyBytes))
}

func decodeKey(text, prefix string, size int) ([]byte, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(text), prefix)
	if !ok {
		return nil, fmt.Errorf("it does not begin with %q", strings.TrimSpace(prefix))
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != size {
		return nil, fmt.Errorf("not %d bytes in base64", size)
	}
	return key, nil
}

// ParsePublicKey reads the content of a PublicFile.
func ParsePublicKey(text string) (ed25519.PublicKey, error) {
	key, err := decodeKey(text, publicPrefix, ed25519.PublicKeySize)
	if err != nil {
		return nil, fmt.Errorf("read public key: %w", err)
	}
	return key, nil
}

// GenerateKey makes the host's key. It does not replace one: the error is os.ErrExist.
func GenerateKey(dir string) (ed25519.PublicKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:forbidigo // the host's configuration
		return nil, fmt.Errorf("make key: %w", err)
	}
	if err := writeNew(filepath.Join(dir, KeyFile), seedPrefix+encodeKey(private.Seed())+"\n", 0o600); err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, PublicFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return public, writeNew(filepath.Join(dir, PublicFile), publicPrefix+encodeKey(public)+"\n", 0o644)
}

func writeNew(name, text string, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}
