package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Numbers of SSH. Source: RFC 4253, 6 and 12; RFC 4419, 5 for the group that a server may send before its key.
const (
	sshMaxPacket   = 35000
	sshMaxBanner   = 16 << 10 // with the lines that a server may send before it
	sshNewKeys     = 21
	sshFirstReply  = 30 // of the key exchange methods' own numbers
	sshLastReply   = 34
	sshFingerprint = "SHA256:"
)

// hostKeyFilter is a filter for what an SSH server says: nothing from its key exchange reply on passes until the host key
// in that is one of keys, given as fingerprints the way OpenSSH prints them.
//
// The key can be seen because it comes before encryption. That its owner is there is for the client to check, by the
// signature: a server that only claims the key gets no further with a client that is honest.
func hostKeyFilter(keys []string) filter {
	banner := false
	return func(held []byte) (int, bool, error) {
		for seen := 0; ; {
			rest := held[seen:]
			if !banner {
				n, found, err := sshBanner(rest)
				if n == 0 || err != nil {
					return seen, false, err
				}
				seen, banner = seen+n, found
				continue
			}
			packet, payload, err := sshPacket(rest)
			if packet == 0 || err != nil {
				return seen, false, err
			}
			verdict, err := judgeKeyExchange(payload, keys)
			if err != nil {
				return seen, false, err
			}
			seen += packet
			if verdict {
				return seen, true, nil
			}
		}
	}
}

// sshBanner measures one line; found says that it is the server's version. 0 wants more bytes.
func sshBanner(b []byte) (n int, found bool, err error) {
	at := bytes.IndexByte(b, '\n')
	switch {
	case at < 0 && len(b) > sshMaxBanner:
		return 0, false, errors.New("the server sends no SSH version")
	case at < 0:
		return 0, false, nil
	}
	return at + 1, bytes.HasPrefix(b, []byte("SSH-")), nil
}

// sshPacket measures one unencrypted packet and returns what is in it. 0 wants more bytes.
func sshPacket(b []byte) (n int, payload []byte, err error) {
	if len(b) < 5 {
		return 0, nil, nil
	}
	length, padding := binary.BigEndian.Uint32(b), int(b[4])
	switch {
	case length > sshMaxPacket || int(length) < 2+padding:
		return 0, nil, fmt.Errorf("an SSH packet of %d bytes", length)
	case len(b) < 4+int(length):
		return 0, nil, nil
	}
	return 4 + int(length), b[5 : 4+int(length)-padding], nil
}

// judgeKeyExchange looks for a host key in one message of the key exchange; true says that it is there and is one of keys.
func judgeKeyExchange(payload []byte, keys []string) (bool, error) {
	switch kind := payload[0]; {
	case kind == sshNewKeys:
		return false, errors.New("the server ends the key exchange without showing a host key")
	case kind < sshFirstReply || kind > sshLastReply:
		return false, nil
	}
	r := reader{payload[1:], true}
	key := r.vector(4)
	if !r.ok {
		return false, errors.New("a damaged reply in the SSH key exchange")
	}
	inner := reader{key, true}
	if name := inner.vector(4); !inner.ok || !sshAlgorithm(name) {
		// The group of a Diffie-Hellman exchange, which comes before the reply.
		return false, nil
	}
	sum := sha256.Sum256(key)
	have := sshFingerprint + base64.RawStdEncoding.EncodeToString(sum[:])
	if !slices.Contains(keys, have) {
		return false, fmt.Errorf("the server's host key is %s, which the rule does not name", have)
	}
	return true, nil
}

// sshAlgorithm tells the name of a kind of key from the beginning of a number.
func sshAlgorithm(name []byte) bool {
	for _, c := range name {
		if c < '!' || c > '~' {
			return false
		}
	}
	return len(name) >= 4
}
