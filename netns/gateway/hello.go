package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Bounds of a TLS client hello. A post-quantum key share makes one of some 1.8 KiB.
const (
	maxHelloBytes  = 32 << 10
	maxRecordBytes = 16 << 10
)

// errShort says that more bytes are needed.
var errShort = errors.New("incomplete")

// hello is what the gateway reads of a TLS client hello.
type hello struct {
	serverName string // as sent; "" for none
	encrypted  bool   // it has an encrypted_client_hello extension: the real name may be another
}

// TLS numbers. Source: RFC 8446, 4 and B.3; RFC 6066, 3; RFC 9849 for encrypted_client_hello.
const (
	recordHandshake      = 22
	handshakeClientHello = 1
	extensionServerName  = 0
	extensionECH         = 0xfe0d
	extensionOldESNI     = 0xffce
)

// parseHello reads a client hello, which may be cut into any number of records, from the beginning of a connection.
// errShort asks for more bytes; any other error says what isn't TLS.
func parseHello(data []byte) (hello, error) {
	var msg []byte
	for len(msg) < 4 || len(msg) < 4+handshakeLength(msg) {
		if len(data) < 5 {
			return hello{}, shortUnless(len(data) > 0 && data[0] != recordHandshake)
		}
		n := int(binary.BigEndian.Uint16(data[3:]))
		switch {
		case data[0] != recordHandshake || data[1] != 3:
			return hello{}, errors.New("not a TLS handshake record")
		case n == 0 || n > maxRecordBytes:
			return hello{}, fmt.Errorf("a TLS record of %d bytes", n)
		}
		part := data[5:min(5+n, len(data))]
		if msg == nil {
			msg = slices.Clip(part) // in one record, as most: no copy
		} else {
			msg = append(msg, part...)
		}
		if len(msg) > 0 && msg[0] != handshakeClientHello {
			return hello{}, errors.New("not a client hello")
		}
		if len(msg) >= 4 && handshakeLength(msg) > maxHelloBytes {
			return hello{}, fmt.Errorf("a client hello of %d bytes", handshakeLength(msg))
		}
		if len(part) < n {
			if len(msg) >= 4 && len(msg) >= 4+handshakeLength(msg) {
				break
			}
			return hello{}, errShort
		}
		data = data[5+n:]
	}
	return parseHelloBody(msg[4 : 4+handshakeLength(msg)])
}

// wholeRecords returns how many bytes of data are in complete records, if from are known to be. Behind a header that is
// none it is all of them.
func wholeRecords(data []byte, from int) int {
	for len(data)-from >= 5 {
		n := int(binary.BigEndian.Uint16(data[from+3:]))
		if data[from] != recordHandshake || n == 0 || n > maxRecordBytes {
			return len(data)
		}
		if len(data)-from < 5+n {
			break
		}
		from += 5 + n
	}
	return from
}

func shortUnless(wrong bool) error {
	if wrong {
		return errors.New("not a TLS handshake record")
	}
	return errShort
}

func handshakeLength(msg []byte) int { return int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3]) }

// reader cuts fields off a message; ok turns false at the first one that isn't there.
type reader struct {
	b  []byte
	ok bool
}

func (r *reader) skip(n int) []byte {
	if n > len(r.b) {
		r.ok, r.b = false, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

// vector reads a length of size bytes and what it counts.
func (r *reader) vector(size int) []byte {
	n := 0
	for _, x := range r.skip(size) {
		n = n<<8 | int(x)
	}
	return r.skip(n)
}

func (r *reader) uint16() uint16 {
	if b := r.skip(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func parseHelloBody(b []byte) (hello, error) {
	r := reader{b, true}
	r.skip(2 + 32) // legacy version, random
	r.vector(1)    // session id
	r.vector(2)    // cipher suites
	r.vector(1)    // compression methods
	if !r.ok {
		return hello{}, errors.New("a damaged client hello")
	}
	var h hello
	if len(r.b) == 0 {
		return h, nil // no extensions
	}
	ext := reader{r.vector(2), r.ok}
	if !r.ok || len(r.b) != 0 {
		return hello{}, errors.New("a damaged list of extensions")
	}
	seen := false
	for len(ext.b) > 0 {
		kind, body := ext.uint16(), ext.vector(2)
		if !ext.ok {
			return hello{}, errors.New("a damaged extension")
		}
		switch kind {
		case extensionServerName:
			name, err := parseServerName(body)
			if err != nil || seen {
				return hello{}, errors.New("a damaged or repeated server name")
			}
			h.serverName, seen = name, true
		case extensionECH, extensionOldESNI:
			h.encrypted = true
		}
	}
	return h, nil
}

// parseServerName wants exactly one entry, a host name. Source: RFC 6066, 3.
func parseServerName(b []byte) (string, error) {
	r := reader{b, true}
	list := reader{r.vector(2), r.ok}
	kind := list.skip(1)
	name := list.vector(2)
	if !r.ok || !list.ok || len(r.b) != 0 || len(list.b) != 0 || kind[0] != 0 || len(name) == 0 {
		return "", errors.New("not one host name")
	}
	return string(name), nil
}
