package egress

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Protocol is what a connection speaks.
type Protocol string

// Protocols. Raw is any other one; only a tcp:// rule allows it for a name.
const (
	TLS  Protocol = "tls"
	HTTP Protocol = "http"
	SSH  Protocol = "ssh"
	Raw  Protocol = "tcp"
)

// Rule is one parsed rule. The zero value matches nothing.
type Rule struct {
	text string
	// host is a name; with wildcard every name below it, any name if it is empty.
	host      string
	wildcard  bool
	prefix    netip.Prefix // valid for rules on addresses
	protocols []Protocol
	ports     []portRange
	methods   []string // of plain HTTP, or of TLS that is inspected; nil is all
	path      string   // likewise, a prefix
	// hostKeys are fingerprints of which the SSH server has to show one; nil is any key.
	hostKeys []string
}

type portRange struct{ first, last uint16 }

// String returns the rule as it was written.
func (r Rule) String() string { return r.text }

// IsHost reports whether the rule is for one name at one port.
func (r Rule) IsHost() bool {
	return !r.wildcard && r.host != "" && r.path == "" && len(r.ports) == 1 && r.ports[0].first == r.ports[0].last
}

// Inspects reports whether the rule judges requests inside of TLS, which have to be decrypted for that.
func (r Rule) Inspects() bool {
	return (r.methods != nil || r.path != "") && slices.Contains(r.protocols, TLS)
}

// OnPorts reports whether the rule is for one of these ports, both ends included.
func (r Rule) OnPorts(first, last uint16) bool {
	return slices.ContainsFunc(r.ports, func(p portRange) bool { return p.first <= last && first <= p.last })
}

// ParseRule parses a rule, see the package's documentation. The error says what of the text is wrong.
func ParseRule(text string) (Rule, error) {
	r, err := parseRule(text)
	if err != nil {
		return Rule{}, fmt.Errorf("network rule %q: %w", clip(text), err)
	}
	return r, nil
}

func parseRule(text string) (Rule, error) {
	r := Rule{text: text}
	rest := text
	if strings.HasPrefix(text, "ssh://") {
		var err error
		if rest, err = r.cutHostKeys(rest); err != nil {
			return r, err
		}
	} else if methods, after, ok := strings.Cut(rest, " "); ok {
		if r.methods = strings.Split(methods, ","); !validMethods(r.methods) {
			return r, fmt.Errorf("%q are not HTTP methods in capitals, separated by commas", methods)
		}
		rest = after
	}
	scheme, rest, err := r.cutScheme(rest)
	if err != nil {
		return r, err
	}
	if rest, err = r.cutPath(rest, scheme); err != nil {
		return r, err
	}
	target, ports, err := cutPorts(rest)
	if err != nil {
		return r, err
	}
	if r.ports, err = parsePorts(ports, scheme); err != nil {
		return r, err
	}
	if len(r.methods) > 0 && scheme != "http" && scheme != "https" {
		return r, errors.New("methods are seen in plain HTTP, and in TLS that is inspected: write http:// or https://")
	}
	return r, r.parseTarget(target)
}

// cutHostKeys splits the fingerprints of an SSH server's host keys off.
func (r *Rule) cutHostKeys(text string) (string, error) {
	rest, keys, ok := strings.Cut(text, " ")
	if !ok {
		return rest, nil
	}
	r.hostKeys = strings.Split(keys, ",")
	for _, k := range r.hostKeys {
		sum, ok := strings.CutPrefix(k, "SHA256:")
		if b, err := base64.RawStdEncoding.Strict().DecodeString(sum); !ok || err != nil || len(b) != sha256Bytes {
			return "", fmt.Errorf("%q is not a fingerprint like those of ssh-keygen -l: want SHA256: and 43 characters", clip(k))
		}
	}
	return rest, nil
}

const sha256Bytes = 32

// cutScheme splits "scheme://" off.
func (r *Rule) cutScheme(text string) (scheme, rest string, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		r.protocols = []Protocol{TLS, HTTP}
		return "", text, nil
	}
	switch scheme {
	case "https", "tls":
		r.protocols = []Protocol{TLS}
	case "http":
		r.protocols = []Protocol{HTTP}
	case "ssh":
		r.protocols = []Protocol{SSH}
	case "tcp":
		r.protocols = []Protocol{TLS, HTTP, SSH, Raw}
	default:
		return "", "", fmt.Errorf("scheme %q is not https, tls, http, ssh or tcp", clip(scheme))
	}
	return scheme, rest, nil
}

// cutPath splits the path prefix off, of plain HTTP or of TLS that is inspected. The slash of a prefix length (10.0.0.0/8) is none.
func (r *Rule) cutPath(text, scheme string) (string, error) {
	at := strings.IndexByte(text, '/')
	if at < 0 || scheme == "" {
		return text, nil
	}
	target, path := text[:at], text[at:]
	if path == "/" {
		return target, nil
	}
	if scheme != "http" {
		if _, err := netip.ParsePrefix(strings.Trim(prefixText(text), "[]")); err == nil {
			return text, nil
		}
		if scheme != "https" {
			return "", fmt.Errorf("the path %q is seen in plain HTTP, and in TLS that is inspected: write http:// or https://", clip(path))
		}
	}
	// A path that is below none is not below itself, and would be a rule that nothing meets.
	if _, ok := decodePath(path); !ok || strings.ContainsAny(path, "?#%\\ ") || strings.Contains(path, "/.") {
		return "", fmt.Errorf("path %q: want a plain prefix without escapes, control characters, dots at the start of a segment, or a query", clip(path))
	}
	r.path = path
	return target, nil
}

// prefixText is the part of a target before its ports.
func prefixText(target string) string {
	if strings.HasPrefix(target, "[") {
		before, _, _ := strings.Cut(target, "]")
		return before
	}
	before, _, _ := strings.Cut(target, ":")
	return before
}

// cutPorts splits ":PORTS" off; IPv6 stands in brackets.
func cutPorts(text string) (target, ports string, err error) {
	if inside, ok := strings.CutPrefix(text, "["); ok {
		target, after, ok := strings.Cut(inside, "]")
		ports, colon := strings.CutPrefix(after, ":")
		if !ok || !strings.Contains(target, ":") || after != "" && (!colon || ports == "") {
			return "", "", errors.New("want [ADDRESS]:PORTS")
		}
		return target, ports, nil
	}
	switch target, ports, ok := strings.Cut(text, ":"); {
	case !ok:
		return text, "", nil
	case ports == "":
		return "", "", errors.New("no port behind the colon")
	case strings.Contains(ports, ":"):
		return "", "", errors.New("an IPv6 address stands in brackets")
	default:
		return target, ports, nil
	}
}

func (r *Rule) parseTarget(target string) error {
	if p, err := parsePrefix(target); err == nil {
		if r.prefix = p; p.Bits() == 0 {
			return errors.New("covers every address: use the mode engine for that")
		}
		if r.path != "" || r.methods != nil {
			return errors.New("a rule on addresses has no methods and no path")
		}
		if len(r.protocols) == 2 { // no scheme: there is no name that could be checked
			r.protocols = []Protocol{TLS, HTTP, SSH, Raw}
		}
		return nil
	} else if strings.ContainsRune(target, '/') {
		return err
	}
	if target == "*" {
		r.wildcard = true
		return nil
	}
	name, wildcard := strings.CutPrefix(target, "*.")
	host, err := ParseHost(name)
	if err != nil {
		return err
	}
	if strings.HasSuffix(name, ".") {
		return errors.New("a trailing dot")
	}
	r.host, r.wildcard = host, wildcard
	return nil
}

// parsePrefix accepts an address or a prefix without host bits, in one spelling only: no zone, no IPv4 in IPv6.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, aerr := netip.ParseAddr(s)
		if aerr != nil {
			return p, err
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	switch {
	case p.Addr().Is4In6() || p.Addr().Zone() != "" || !p.IsValid():
		return p, errors.New("an IPv4-mapped address or one with a zone")
	case p.Masked() != p:
		return p, fmt.Errorf("host bits are set: write %s", p.Masked())
	}
	return p, nil
}

func parsePorts(text, scheme string) ([]portRange, error) {
	if text == "" {
		switch scheme {
		case "ssh":
			return []portRange{{22, 22}}, nil
		case "http":
			return []portRange{{80, 80}}, nil
		case "tcp":
			return nil, errors.New("tcp:// needs a port")
		}
		return []portRange{{443, 443}}, nil
	}
	var out []portRange
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err := parsePort(first)
		b, berr := parsePort(last)
		if err != nil || berr != nil || a > b {
			return nil, fmt.Errorf("%q is not a port from 1 to 65535, or a range of them", clip(part))
		}
		out = append(out, portRange{a, b})
	}
	return out, nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' || s[0] == '+' {
		return 0, strconv.ErrRange
	}
	return uint16(n), nil
}

func validMethods(list []string) bool {
	return !slices.ContainsFunc(list, func(m string) bool {
		return m == "" || len(m) > 20 || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != ""
	})
}

func (r *Rule) matchesName(host string) bool {
	switch {
	case r.prefix.IsValid() || r.text == "":
		return false
	case !r.wildcard:
		return host == r.host
	case r.host == "":
		return true
	}
	below, ok := strings.CutSuffix(host, r.host)
	return ok && len(below) > 1 && below[len(below)-1] == '.'
}

func (r *Rule) matchesPort(port uint16) bool {
	return slices.ContainsFunc(r.ports, func(p portRange) bool { return p.first <= port && port <= p.last })
}

func (r *Rule) matchesRequest(method, path string) bool {
	return (r.methods == nil || slices.Contains(r.methods, method)) && (r.path == "" || belowPath(path, r.path))
}
