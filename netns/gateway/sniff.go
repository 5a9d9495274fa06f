package gateway

import (
	"bytes"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// sniff tells from the first bytes of a client what it speaks; "" if they are too few.
func sniff(b []byte) egress.Protocol {
	if len(b) == 0 {
		return ""
	}
	if b[0] == recordHandshake {
		if len(b) < 3 {
			return ""
		}
		if b[1] == 3 {
			return egress.TLS
		}
		return egress.Raw
	}
	if banner := []byte("SSH-"); bytes.HasPrefix(b, banner) {
		return egress.SSH
	} else if bytes.HasPrefix(banner, b) {
		return ""
	}
	return sniffHTTP(b)
}

// sniffHTTP recognises a request line by its method: capitals, then a space.
func sniffHTTP(b []byte) egress.Protocol {
	const longest = 20
	for i, c := range b[:min(len(b), longest+1)] {
		switch {
		case c == ' ' && i >= 3:
			return egress.HTTP
		case (c < 'A' || c > 'Z') && c != '-':
			return egress.Raw
		}
	}
	if len(b) > longest {
		return egress.Raw
	}
	return ""
}
