package lazyjson

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// typeInfo is what a coder has to know of a named type or a struct.
type typeInfo struct {
	t reflect.Type
	// opaque types are left to encoding/json; undecodable ones only when they are read.
	opaque, undecodable bool
	fields              []field
}

// field is one field of a struct.
type field struct {
	name                string
	index               int
	omitEmpty, omitZero bool
	embedded            bool // its own fields count as the struct's
}

// types remembers the types that came along; a spec has some 20.
type types struct{ seen []*typeInfo }

// maxFields is the width of the decoder's set of fields.
const maxFields = 64

// of returns nil for types without a name that are no structs: they have no methods.
func (c *types) of(t reflect.Type) *typeInfo {
	if t.Kind() != reflect.Struct && t.PkgPath() == "" {
		return nil
	}
	for _, info := range c.seen {
		if info.t == t {
			return info
		}
	}
	info := &typeInfo{t: t}
	c.seen = append(c.seen, info)
	switch {
	case hasMethods(t):
		info.opaque = true
	case t.Kind() == reflect.Struct:
		info.addFields()
	}
	return info
}

// hasMethods reports whether encoding/json would call a method of a type, or of a pointer to it.
func hasMethods(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	if p.NumMethod() == 0 {
		return false
	}
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		p.Implements(reflect.TypeFor[encoding.TextMarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func (info *typeInfo) addFields() {
	n := info.t.NumField()
	info.fields = make([]field, 0, n)
	embedded := 0
	for i := range n {
		sf := info.t.Field(i)
		tag := sf.Tag.Get("json")
		if tag == "-" || !sf.IsExported() && !sf.Anonymous {
			continue
		}
		f := field{name: sf.Name, index: i}
		name, options, _ := strings.Cut(tag, ",")
		if name != "" {
			f.name = name
		}
		if sf.Anonymous && name == "" {
			// Whose fields win among several, and what is not exported, is encoding/json's business.
			embedded++
			f.embedded = true
			t := sf.Type
			if t.Kind() == reflect.Pointer {
				t = t.Elem()
			}
			info.undecodable = true
			info.opaque = info.opaque || embedded > 1 || !sf.IsExported() || t.Kind() != reflect.Struct
		}
		for option := range strings.SplitSeq(options, ",") {
			switch option {
			case "", "omitempty":
				f.omitEmpty = f.omitEmpty || option != ""
			case "omitzero":
				_, own := sf.Type.MethodByName("IsZero")
				f.omitZero, info.opaque = true, info.opaque || own
			default:
				info.opaque = true
			}
		}
		info.opaque = info.opaque || !isPlainName(f.name) || info.has(f.name)
		info.fields = append(info.fields, f)
	}
	info.undecodable = info.undecodable || len(info.fields) > maxFields
}

func (info *typeInfo) has(name string) bool {
	for i := range info.fields {
		if info.fields[i].name == name {
			return true
		}
	}
	return false
}

// isPlainName reports whether a name is written as it is.
func isPlainName(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		if (c < 'a' || c > 'z') && (s[i] < '0' || s[i] > '9') && s[i] != '_' && s[i] != '-' && s[i] != '.' {
			return false
		}
	}
	return s != ""
}
