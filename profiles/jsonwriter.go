package profiles

import (
	"strconv"
	"unicode/utf8"
)

// jsonWriter appends JSON: keys in the order of the calls, no white space.
type jsonWriter struct {
	buf  []byte
	more bool // a comma comes before the next key or item
}

func (j *jsonWriter) raw(s string) { j.buf, j.more = append(j.buf, s...), true }

func (j *jsonWriter) comma() {
	if j.more {
		j.buf = append(j.buf, ',')
	}
	j.more = false
}

func (j *jsonWriter) object(fields func()) {
	j.comma()
	j.buf = append(j.buf, '{')
	fields()
	j.raw("}")
}

func (j *jsonWriter) key(k string) {
	j.comma()
	j.quote(k)
	j.buf, j.more = append(j.buf, ':'), false
}

func (j *jsonWriter) text(k, v string) { j.key(k); j.quote(v) }

func (j *jsonWriter) number(k string, v uint64) {
	j.key(k)
	j.buf, j.more = strconv.AppendUint(j.buf, v, 10), true
}

func (j *jsonWriter) boolean(k string, v bool) { j.key(k); j.raw(strconv.FormatBool(v)) }

func (j *jsonWriter) texts(k string, list []string) {
	j.key(k)
	j.buf = append(j.buf, '[')
	for _, s := range list {
		j.comma()
		j.quote(s)
	}
	j.raw("]")
}

// list writes objects.
func (j *jsonWriter) list(k string, n int, fields func(i int)) {
	j.key(k)
	j.buf = append(j.buf, '[')
	for i := range n {
		j.object(func() { fields(i) })
	}
	j.raw("]")
}

// quote writes a string. Only a byte that is not UTF-8 is escaped as \u00xx above 7f, so different strings stay
// different.
func (j *jsonWriter) quote(s string) {
	const hexDigits = "0123456789abcdef"
	j.buf = append(j.buf, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			j.buf = append(j.buf, '\\', c)
		case c < ' ':
			j.buf = append(j.buf, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		case c < utf8.RuneSelf:
			j.buf = append(j.buf, c)
		default:
			if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
				j.buf = append(j.buf, s[i:i+n]...)
				i += n
				continue
			}
			j.buf = append(j.buf, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
	}
	j.buf, j.more = append(j.buf, '"'), true
}

// signed writes a number unless it is 0.
func (j *jsonWriter) signed(k string, v int64) {
	if v != 0 {
		j.key(k)
		j.buf, j.more = strconv.AppendInt(j.buf, v, 10), true
	}
}

// some writes a text unless it is empty.
func (j *jsonWriter) some(k, v string) {
	if v != "" {
		j.text(k, v)
	}
}

// someTexts writes a list unless it is empty.
func (j *jsonWriter) someTexts(k string, list []string) {
	if len(list) > 0 {
		j.texts(k, list)
	}
}

// yes writes true, or nothing.
func (j *jsonWriter) yes(k string, v bool) {
	if v {
		j.boolean(k, v)
	}
}

// part writes an object unless it would be empty.
func (j *jsonWriter) part(k string, fields func(*jsonWriter)) {
	start, more := len(j.buf), j.more
	j.key(k)
	j.buf = append(j.buf, '{')
	from := len(j.buf)
	fields(j)
	if len(j.buf) == from {
		j.buf, j.more = j.buf[:start], more
		return
	}
	j.raw("}")
}
