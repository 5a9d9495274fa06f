package wire

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Message is a message's fields by number; a field that is repeated has several values.
type Message map[protowire.Number][]Value

// Value is one value: a number, or the bytes of a string, a message or a packed list.
type Value struct {
	Number uint64
	Bytes  []byte
}

// ErrGroup says that a message holds a group, which no API of today has.
var ErrGroup = errors.New("a group, which is not supported")

// Parse reads a message. Its bytes stay in use.
func Parse(b []byte) (Message, error) {
	m := Message{}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("decode field: %w", protowire.ParseError(n))
		}
		b = b[n:]
		var v Value
		switch kind {
		case protowire.VarintType:
			v.Number, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v.Number, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var small uint32
			small, n = protowire.ConsumeFixed32(b)
			v.Number = uint64(small)
		case protowire.BytesType:
			v.Bytes, n = protowire.ConsumeBytes(b)
		default:
			return nil, fmt.Errorf("decode field %d: %w", number, ErrGroup)
		}
		if n < 0 {
			return nil, fmt.Errorf("decode field %d: %w", number, protowire.ParseError(n))
		}
		m[number] = append(m[number], v)
		b = b[n:]
	}
	return m, nil
}

// Received reads the message that was decoded into e.
func Received(e *emptypb.Empty) (Message, error) { return Parse(e.ProtoReflect().GetUnknown()) }

// last is the value that counts of a field that is not repeated.
func (m Message) last(n protowire.Number) Value {
	if vs := m[n]; len(vs) > 0 {
		return vs[len(vs)-1]
	}
	return Value{}
}

// Number returns a numeric field, 0 if it is not there.
func (m Message) Number(n protowire.Number) uint64 { return m.last(n).Number }

// String returns a field of text, "" if it is not there.
func (m Message) String(n protowire.Number) string { return string(m.last(n).Bytes) }

// Bytes returns a field of bytes, nil if it is not there.
func (m Message) Bytes(n protowire.Number) []byte { return m.last(n).Bytes }

// Strings returns a repeated field of text.
func (m Message) Strings(n protowire.Number) []string {
	var out []string
	for _, v := range m[n] {
		out = append(out, string(v.Bytes))
	}
	return out
}

// Message returns the message in a field, an empty one if it is not there.
func (m Message) Message(n protowire.Number) (Message, error) {
	out, err := Parse(m.last(n).Bytes)
	if err != nil {
		return nil, fmt.Errorf("field %d: %w", n, err)
	}
	return out, nil
}

// Map returns a field that is a map from text to text.
func (m Message) Map(n protowire.Number) (map[string]string, error) {
	out := map[string]string{}
	for _, v := range m[n] {
		entry, err := Parse(v.Bytes)
		if err != nil {
			return nil, fmt.Errorf("field %d: %w", n, err)
		}
		out[entry.String(1)] = entry.String(2)
	}
	return out, nil
}

// Builder gathers the fields of a message. Its methods return it with one more; values that are the default are left out.
type Builder []byte

// String adds a field of text.
func (b Builder) String(n protowire.Number, s string) Builder { return b.Bytes(n, []byte(s)) }

// Bytes adds a field of bytes, or of a message.
func (b Builder) Bytes(n protowire.Number, v []byte) Builder {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

// Number adds a numeric field.
func (b Builder) Number(n protowire.Number, v uint64) Builder {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

// Time adds a google.protobuf.Timestamp. The zero time is left out.
func (b Builder) Time(n protowire.Number, t time.Time) Builder {
	if t.IsZero() {
		return b
	}
	return b.Bytes(n, Builder(nil).Number(1, uint64(t.Unix())).Number(2, uint64(t.Nanosecond()))) //nolint:gosec // after 1970
}

// Sent makes a message to be encoded of the fields.
func (b Builder) Sent() *emptypb.Empty {
	e := &emptypb.Empty{}
	e.ProtoReflect().SetUnknown([]byte(b))
	return e
}
