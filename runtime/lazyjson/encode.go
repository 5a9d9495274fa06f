package lazyjson

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
)

// Marshal returns v as encoding/json's Marshal does, byte for byte. The error is that of encoding/json.
func Marshal(v any) ([]byte, error) {
	if v == nil {
		return []byte("null"), nil
	}
	e := encoder{buf: make([]byte, 0, 1<<10)}
	if e.value(reflect.ValueOf(v)) {
		return e.buf, nil
	}
	return json.Marshal(v)
}

// encoder appends to buf. Its methods return false for what they can't write, and then encoding/json decides.
type encoder struct {
	types types
	buf   []byte
}

func (e *encoder) value(v reflect.Value) bool {
	info := e.types.of(v.Type())
	if info != nil && info.opaque {
		return e.foreign(v)
	}
	switch v.Kind() {
	case reflect.Bool:
		e.buf = strconv.AppendBool(e.buf, v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.buf = strconv.AppendInt(e.buf, v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		e.buf = strconv.AppendUint(e.buf, v.Uint(), 10)
	case reflect.String:
		return e.text(v.String())
	case reflect.Pointer:
		if v.IsNil() {
			e.raw("null")
			return true
		}
		return e.value(v.Elem())
	case reflect.Slice:
		return e.slice(v)
	case reflect.Map:
		return e.object(v)
	case reflect.Struct:
		e.raw("{")
		if !e.fields(v, info, nil, true) {
			return false
		}
		e.raw("}")
	default:
		return e.foreign(v)
	}
	return true
}

func (e *encoder) raw(s string) { e.buf = append(e.buf, s...) }

// foreign leaves a value to encoding/json.
func (e *encoder) foreign(v reflect.Value) bool {
	if v.CanAddr() {
		v = v.Addr() // a method of the pointer counts, too
	}
	data, err := json.Marshal(v.Interface())
	e.buf = append(e.buf, data...)
	return err == nil
}

func (e *encoder) text(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			data, err := json.Marshal(s)
			e.buf = append(e.buf, data...)
			return err == nil
		}
	}
	e.raw(`"`)
	e.raw(s)
	e.raw(`"`)
	return true
}

func (e *encoder) slice(v reflect.Value) bool {
	if v.IsNil() {
		e.raw("null")
		return true
	}
	elem := v.Type().Elem()
	if info := e.types.of(elem); elem.Kind() == reflect.Uint8 && (info == nil || !info.opaque) {
		e.raw(`"`)
		e.buf = base64.StdEncoding.AppendEncode(e.buf, v.Bytes())
		e.raw(`"`)
		return true
	}
	e.raw("[")
	for i := range v.Len() {
		if i > 0 {
			e.raw(",")
		}
		if !e.value(v.Index(i)) {
			return false
		}
	}
	e.raw("]")
	return true
}

// object writes a map, in the order of its keys.
func (e *encoder) object(v reflect.Value) bool {
	key := v.Type().Key()
	if info := e.types.of(key); key.Kind() != reflect.String || info != nil && info.opaque {
		return e.foreign(v)
	}
	if v.IsNil() {
		e.raw("null")
		return true
	}
	values := make(map[string]reflect.Value, v.Len())
	for iter := v.MapRange(); iter.Next(); {
		values[iter.Key().String()] = iter.Value()
	}
	e.raw("{")
	for i, k := range slices.Sorted(maps.Keys(values)) {
		if i > 0 {
			e.raw(",")
		}
		if !e.text(k) {
			return false
		}
		e.raw(":")
		if !e.value(values[k]) {
			return false
		}
	}
	e.raw("}")
	return true
}

// fields writes the fields of a struct. Those that outer has, too, are hidden by it; first says that none came before.
func (e *encoder) fields(v reflect.Value, info, outer *typeInfo, first bool) bool {
	for i := range info.fields {
		f := &info.fields[i]
		if outer != nil && outer.has(f.name) {
			continue
		}
		fv := v.Field(f.index)
		if f.embedded {
			start := len(e.buf)
			if !e.embedded(fv, info, outer, first) {
				return false
			}
			first = first && len(e.buf) == start
			continue
		}
		if f.omitEmpty && isEmpty(fv) || f.omitZero && fv.IsZero() {
			continue
		}
		if !first {
			e.raw(",")
		}
		first = false
		e.raw(`"`)
		e.raw(f.name)
		e.raw(`":`)
		if !e.value(fv) {
			return false
		}
	}
	return true
}

func (e *encoder) embedded(v reflect.Value, info, outer *typeInfo, first bool) bool {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	inner := e.types.of(v.Type())
	if inner.opaque || inner.undecodable || outer != nil {
		return false // embedding within embedding, or with methods: whose field wins is encoding/json's business
	}
	return e.fields(v, inner, info, first)
}

// isEmpty is encoding/json's notion for omitempty.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}
