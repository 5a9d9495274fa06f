package lazyjson_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/runtime/lazyjson"
)

type inner struct {
	Name   string `json:"name"`
	Hidden int    `json:"hidden,omitempty"`
}

type upper string

func (u upper) MarshalText() ([]byte, error) { return []byte(strings.ToUpper(string(u))), nil }

// odd has what specs rarely have.
type odd struct {
	*inner
	Hidden  string `json:"hidden"`
	NoTag   int
	private int
	Skipped int                `json:"-"`
	Quoted  int                `json:"quoted,string"`
	Any     any                `json:"any"`
	Array   [3]uint8           `json:"array"`
	Bytes   []byte             `json:"bytes"`
	Lists   [][]byte           `json:"lists,omitempty"`
	Float   float64            `json:"float"`
	When    time.Time          `json:"when"`
	Prefix  []netip.Prefix     `json:"prefix"`
	Upper   upper              `json:"upper"`
	Keys    map[upper]int      `json:"keys"`
	Numbers map[int]string     `json:"numbers"`
	Structs map[string]inner   `json:"structs"`
	Zero    struct{ A, B int } `json:"zero,omitzero"`
	Twice   **inner            `json:"twice"`
	Raw     json.RawMessage    `json:"raw,omitempty"`
}

type embeds struct {
	A string `json:"a"`
	*inner
	Hidden string `json:"hidden"`
	Z      int    `json:"z,omitzero"`
}

// fill sets every field that can be set, as far down as depth; a part stays zero.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	if depth == 0 || r.IntN(5) == 0 {
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(r.Uint64() >> (64 - v.Type().Bits())))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64() >> (64 - v.Type().Bits()))
	case reflect.Float64:
		v.SetFloat(r.NormFloat64())
	case reflect.String:
		texts := []string{"plain", "ä€😀", "a\"b\\c\n\x01", "<&>", "\xff\u2028", "\x7f", ""}
		v.SetString(texts[r.IntN(len(texts))])
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem(), depth-1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(4), 5))
		for i := range v.Len() {
			fill(r, v.Index(i), depth-1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(4) {
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(r, key, depth)
			fill(r, elem, depth-1)
			v.SetMapIndex(key, elem)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(r.Int64N(1<<32), 7).UTC()))
			return
		}
		if v.Type() == reflect.TypeFor[netip.Prefix]() {
			v.Set(reflect.ValueOf(netip.MustParsePrefix("10.0.0.0/8")))
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(r, v.Field(i), depth-1)
			}
		}
	default:
	}
}

func TestSameAsEncodingJSON(t *testing.T) {
	for _, typ := range []reflect.Type{
		reflect.TypeFor[specs.Spec](), reflect.TypeFor[specs.Process](), reflect.TypeFor[specs.Linux](),
		reflect.TypeFor[cgroups.Cgroup](), reflect.TypeFor[odd](), reflect.TypeFor[embeds](),
	} {
		t.Run(typ.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
			for range 300 {
				v := reflect.New(typ)
				fill(r, v.Elem(), 9)
				checkEncode(t, v.Interface())
				checkEncode(t, v.Elem().Interface())
				data, err := json.Marshal(v.Interface())
				if err != nil {
					continue
				}
				checkDecode(t, data, typ)
			}
		})
	}
}

func checkEncode(t *testing.T, v any) {
	t.Helper()
	want, wantErr := json.Marshal(v)
	got, err := lazyjson.Marshal(v)
	if (err == nil) != (wantErr == nil) || string(got) != string(want) {
		t.Fatalf("Marshal:\n got %s, %v\nwant %s, %v", got, err, want, wantErr)
	}
}

func checkDecode(t *testing.T, data []byte, typ reflect.Type) {
	t.Helper()
	got, want := reflect.New(typ), reflect.New(typ)
	err, wantErr := lazyjson.Unmarshal(data, got.Interface()), json.Unmarshal(data, want.Interface())
	if !reflect.DeepEqual(err, wantErr) {
		t.Fatalf("Unmarshal %s:\n got %v\nwant %v", data, err, wantErr)
	}
	if !reflect.DeepEqual(got.Interface(), want.Interface()) {
		t.Fatalf("Unmarshal %s:\n got %#v\nwant %#v", data, got.Elem(), want.Elem())
	}
}

// documents have what encoding/json treats in a way of its own, and what is wrong.
var documents = []string{
	``, ` `, `null`, `true`, `{}`, `[]`, `{} {}`, `{}x`, `{`, `{"process"`, `{"process":}`, `{"process":{}`,
	`{"ociVersion":"1.0","ociVersion":"1.1"}`, `{"process":{"cwd":"/a"},"process":{"args":["b"]}}`,
	`{"OCIVERSION":"1.0"}`, `{"ociversion":"1.0","ociVersion":"2"}`, `{"unknown":[1,{"a":"\u00e4\n"},null,-0.5e+7]}`,
	`{"unknown":"\x"}`, `{"unknown":"` + "\x01" + `"}`, `{"unknown":01}`, `{"unknown":1.}`, `{"unknown":-}`, `{"unknown":tru}`,
	`{"hostname":"a\u00e4\ud83d\ude00\"\\\/"}`, `{"hostname":"\ud83d"}`, `{"hostname":"` + "\xff" + `"}`, `{"host\u006eame":"x"}`,
	`{"hostname":7}`, `{"hostname":null}`, `{"process":null}`, `{"process":[]}`, `{"process":"x"}`,
	`{"process":{"user":{"uid":-1}}}`, `{"process":{"user":{"uid":4294967296}}}`, `{"process":{"user":{"uid":1.0}}}`,
	`{"process":{"user":{"uid":1e2}}}`, `{"process":{"terminal":1}}`, `{"process":{"terminal":truefalse}}`,
	`{"process":{"args":[]}}`, `{"process":{"args":null}}`, `{"process":{"args":["a",null]}}`, `{"process":{"args":["a",]}}`,
	`{"process":{"args":[,"a"]}}`, `{"annotations":{"a":"b","a":"c"}}`, `{"annotations":{"":""}}`, `{"annotations":{"a":null}}`,
	`{"mounts":[{"destination":"/a"},null,{}]}`, `{"mounts":[{"options":["ro"],}]}`, `{"mounts":{}}`,
	`{"linux":{"resources":{"pids":{"limit":-1},"memory":{"limit":9223372036854775808}}}}`,
	`{"linux":{"resources":{"blockIO":{"weightDevice":[{"major":8,"minor":0,"weight":10}]}}}}`,
	`{"linux":{"seccomp":{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["a"],"action":"x","args":[{"index":0,"value":18446744073709551615}]}]}}}`,
	`{"linux":{"devices":[{"path":"/dev/x","fileMode":438}]}}`, `{"a":1,}`, `{,}`, `{"a" 1}`, `{"a":1 "b":2}`, "\ufeff{}", "{\"a\":1}\x00",
	strings.Repeat(`{"process":`, 200) + strings.Repeat(`}`, 200), strings.Repeat(`{"x":`, 200) + `1` + strings.Repeat(`}`, 200),
	strings.Repeat(`[`, 20000),
}

func TestDocuments(t *testing.T) {
	for _, d := range documents {
		checkDecode(t, []byte(d), reflect.TypeFor[specs.Spec]())
	}
}

func TestUnmarshalInto(t *testing.T) {
	s := specs.Spec{Hostname: "stays"}
	if err := lazyjson.Unmarshal([]byte(`{"ociVersion":"1"}`), &s); err != nil || s.Hostname != "stays" || s.Version != "1" {
		t.Errorf("decode into a value that is not zero: %+v, %v", s, err)
	}
	for _, into := range []any{nil, s, (*specs.Spec)(nil)} {
		if err := lazyjson.Unmarshal([]byte(`{}`), into); err == nil {
			t.Errorf("decode into %T: no error", into)
		}
	}
	if got, err := lazyjson.Marshal(nil); err != nil || string(got) != "null" {
		t.Errorf("encode nil: %s, %v", got, err)
	}
	if _, err := lazyjson.Marshal(map[string]any{"a": func() {}}); err == nil {
		t.Error("encode a function: no error")
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, d := range documents {
		f.Add([]byte(d))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		checkDecode(t, data, reflect.TypeFor[specs.Spec]())
		checkDecode(t, data, reflect.TypeFor[odd]())
	})
}
