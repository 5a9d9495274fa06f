package lazyjson

import (
	"encoding/json"
	"unicode/utf8"
)

// maxDepth is far below encoding/json's, and above what specs have.
const maxDepth = 100

// scanner reads the grammar of RFC 8259. Its methods skip the white space before what they look for.
type scanner struct {
	data []byte
	at   int
}

// peek returns the next byte that is not white space, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) atEnd() bool {
	s.peek()
	return s.at == len(s.data)
}

// take skips one byte if it is c.
func (s *scanner) take(c byte) bool {
	if s.peek() != c || s.at == len(s.data) {
		return false
	}
	s.at++
	return true
}

// literal skips a word if it is the one that is asked for.
func (s *scanner) literal(word string) bool {
	s.peek()
	if end := s.at + len(word); end > len(s.data) || string(s.data[s.at:end]) != word {
		return false
	}
	s.at += len(word)
	return true
}

// quoted skips a string and returns it with its quotes; nil if it is none. If it is plain, what is between the quotes
// is the value.
func (s *scanner) quoted() (token []byte, plain bool) {
	if !s.take('"') {
		return nil, false
	}
	start := s.at - 1
	plain = true
	ascii := true
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; {
		case c == '"':
			s.at++
			token = s.data[start:s.at]
			return token, plain && (ascii || utf8.Valid(token))
		case c < ' ':
			return nil, false
		case c == '\\':
			s.at++
			plain = false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, false
}

// number skips a number and returns it; it is empty if there is none.
func (s *scanner) number() []byte {
	s.peek()
	start := s.at
	s.sign("-")
	if first := s.at; s.digits() == 0 || s.data[first] == '0' && s.at > first+1 {
		return nil
	}
	if s.at < len(s.data) && s.data[s.at] == '.' {
		s.at++
		if s.digits() == 0 {
			return nil
		}
	}
	if s.at < len(s.data) && s.data[s.at]|0x20 == 'e' {
		s.at++
		s.sign("+-")
		if s.digits() == 0 {
			return nil
		}
	}
	return s.data[start:s.at]
}

func (s *scanner) sign(of string) {
	for i := range len(of) {
		if s.at < len(s.data) && s.data[s.at] == of[i] {
			s.at++
			return
		}
	}
}

func (s *scanner) digits() int {
	start := s.at
	for s.at < len(s.data) && s.data[s.at] >= '0' && s.data[s.at] <= '9' {
		s.at++
	}
	return s.at - start
}

// items reads an array or an object, whose items each reads.
func (s *scanner) items(open, end byte, each func() bool) bool {
	if !s.take(open) {
		return false
	}
	if s.take(end) {
		return true
	}
	for {
		if !each() {
			return false
		}
		if s.take(end) {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// skip reads any value and returns it; nil if it is not valid.
func (s *scanner) skip(depth int) []byte {
	c := s.peek()
	start := s.at
	ok := false
	switch {
	case depth > maxDepth:
	case c == '{':
		ok = s.items('{', '}', func() bool {
			return s.skipText() && s.take(':') && s.skip(depth+1) != nil
		})
	case c == '[':
		ok = s.items('[', ']', func() bool { return s.skip(depth+1) != nil })
	case c == '"':
		ok = s.skipText()
	case c == '-' || c >= '0' && c <= '9':
		ok = len(s.number()) > 0
	default:
		ok = s.literal("null") || s.literal("true") || s.literal("false")
	}
	if !ok {
		return nil
	}
	return s.data[start:s.at]
}

func (s *scanner) skipText() bool {
	token, plain := s.quoted()
	return token != nil && (plain || json.Valid(token))
}
