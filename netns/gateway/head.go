package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// head is the first message of a client, as far as it has come.
type head struct {
	bytes []byte
	whole int // of them, those in complete TLS records
}

// add takes further bytes. It returns the protocol once that is known, and for TLS once the hello is complete.
func (h *head) add(b []byte) egress.Protocol {
	h.bytes = append(h.bytes, b...)
	proto := sniff(h.bytes)
	if proto != egress.TLS || len(h.bytes) > 2*maxHelloBytes {
		return proto
	}
	// Only a further record can complete the hello: a client that sends byte by byte must not have all of it parsed as
	// often.
	more := wholeRecords(h.bytes, h.whole)
	if more == h.whole {
		return ""
	}
	h.whole = more
	if _, err := parseHello(h.bytes); errors.Is(err, errShort) {
		return ""
	}
	return proto
}

// readHead reads until the first message is complete. One deadline bounds it all, so bytes that trickle in hold nothing
// open.
func readHead(c *net.TCPConn, limit time.Duration) ([]byte, egress.Protocol, error) {
	c.SetReadDeadline(time.Now().Add(limit)) //nolint:errcheck // Read says what is wrong
	defer c.SetReadDeadline(time.Time{})     //nolint:errcheck // likewise
	var h head
	var buf [4096]byte
	for {
		n, err := c.Read(buf[:])
		if proto := h.add(buf[:n]); proto != "" {
			return h.bytes, proto, nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return h.bytes, "", errIncomplete(limit)
		}
		if err != nil {
			return h.bytes, "", err
		}
	}
}

func errIncomplete(limit time.Duration) error {
	return fmt.Errorf("nothing complete within %s", limit)
}
