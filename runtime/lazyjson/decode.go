package lazyjson

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// Unmarshal decodes data into the value that into points to, as encoding/json's Unmarshal does. Errors are
// encoding/json's.
func Unmarshal(data []byte, into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() || !v.Elem().IsZero() {
		return json.Unmarshal(data, into)
	}
	d := decoder{scanner: scanner{data: data}}
	if d.value(v.Elem(), 0) && d.atEnd() {
		return nil
	}
	v.Elem().SetZero()
	return json.Unmarshal(data, into)
}

// decoder fills a zero value. Its methods return false for everything that is not plain, and then encoding/json decides.
type decoder struct {
	types types
	scanner
}

func (d *decoder) value(v reflect.Value, depth int) bool {
	if depth > maxDepth {
		return false
	}
	info := d.types.of(v.Type())
	if info != nil && (info.opaque || info.undecodable) {
		return d.foreign(v, depth)
	}
	c, kind := d.peek(), v.Kind()
	if c == 'n' {
		if kind == reflect.Interface {
			return false
		}
		return d.literal("null") // leaves what is zero as it is
	}
	switch kind {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(v.Elem(), depth)
	case reflect.Bool:
		v.SetBool(c == 't')
		return d.literal("true") || d.literal("false")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(string(d.number()), 10, v.Type().Bits())
		v.SetInt(n)
		return err == nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(string(d.number()), 10, v.Type().Bits())
		v.SetUint(n)
		return err == nil
	case reflect.String:
		s, ok := d.text()
		v.SetString(s)
		return ok
	case reflect.Slice:
		return d.slice(v, depth)
	case reflect.Map:
		return d.mapping(v, depth)
	case reflect.Struct:
		return d.object(v, info, depth)
	default:
		return d.foreign(v, depth)
	}
}

// foreign leaves a value to encoding/json.
func (d *decoder) foreign(v reflect.Value, depth int) bool {
	token := d.skip(depth)
	return token != nil && json.Unmarshal(token, v.Addr().Interface()) == nil
}

func (d *decoder) text() (string, bool) {
	token, plain := d.quoted()
	if token == nil {
		return "", false
	}
	if plain {
		return string(token[1 : len(token)-1]), true
	}
	var s string
	err := json.Unmarshal(token, &s)
	return s, err == nil
}

func (d *decoder) slice(v reflect.Value, depth int) bool {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return d.foreign(v, depth) // base64
	}
	if list, ok := v.Addr().Interface().(*[]string); ok {
		*list = []string{}
		return d.items('[', ']', func() bool {
			s, ok := d.text()
			*list = append(*list, s)
			return ok
		})
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	return d.items('[', ']', func() bool {
		n := v.Len()
		if n == v.Cap() {
			v.Grow(max(4, n))
		}
		v.SetLen(n + 1)
		v.Index(n).SetZero()
		return d.value(v.Index(n), depth+1)
	})
}

func (d *decoder) mapping(v reflect.Value, depth int) bool {
	t := v.Type()
	if info := d.types.of(t.Key()); t.Key().Kind() != reflect.String || info != nil && info.opaque {
		return d.foreign(v, depth)
	}
	v.Set(reflect.MakeMap(t))
	return d.items('{', '}', func() bool {
		s, ok := d.text()
		if !ok || !d.take(':') {
			return false
		}
		key, elem := reflect.ValueOf(s).Convert(t.Key()), reflect.New(t.Elem()).Elem()
		if v.MapIndex(key).IsValid() || !d.value(elem, depth+1) {
			return false
		}
		v.SetMapIndex(key, elem)
		return true
	})
}

func (d *decoder) object(v reflect.Value, info *typeInfo, depth int) bool {
	seen := uint64(0)
	return d.items('{', '}', func() bool {
		token, plain := d.quoted()
		if token == nil || !plain || !d.take(':') {
			return false
		}
		key := token[1 : len(token)-1]
		for i := range info.fields {
			if info.fields[i].name != string(key) {
				continue
			}
			if seen&(1<<i) != 0 {
				return false // encoding/json merges the values
			}
			seen |= 1 << i
			return d.value(v.Field(info.fields[i].index), depth+1)
		}
		for i := range info.fields {
			if strings.EqualFold(info.fields[i].name, string(key)) {
				return false
			}
		}
		return d.skip(depth+1) != nil
	})
}
