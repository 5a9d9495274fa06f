package wire

import (
	"errors"
	"testing"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The generated code of the API is the judge: what it writes is read, and the other way round.
func TestAgainstGeneratedCode(t *testing.T) {
	in := &sandbox.CreateSandboxRequest{SandboxID: "id", BundlePath: "/b", NetnsPath: "/n", Annotations: map[string]string{"a": "b", "c": ""}}
	data, err := proto.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var e emptypb.Empty
	if err := proto.Unmarshal(data, &e); err != nil {
		t.Fatal(err)
	}
	m, err := Received(&e)
	if err != nil {
		t.Fatal(err)
	}
	notes, err := m.Map(6)
	if err != nil || m.String(1) != "id" || m.String(2) != "/b" || m.String(5) != "/n" || len(notes) != 2 || notes["a"] != "b" {
		t.Errorf("got %v, %v, %v", m, notes, err)
	}
	at := time.Unix(1700000000, 5).UTC()
	data, err = proto.Marshal(Builder(nil).String(1, "id").Number(2, 77).String(3, "SANDBOX_READY").Time(5, at).Time(6, time.Time{}).Sent())
	if err != nil {
		t.Fatal(err)
	}
	var out sandbox.SandboxStatusResponse
	if err := proto.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if out.SandboxID != "id" || out.Pid != 77 || out.State != "SANDBOX_READY" || !out.CreatedAt.AsTime().Equal(at) || out.ExitedAt != nil {
		t.Errorf("got %v", &out)
	}
}

func TestParseRefuses(t *testing.T) {
	if _, err := Parse([]byte{1<<3 | 3}); !errors.Is(err, ErrGroup) {
		t.Errorf("group: %v", err)
	}
	for _, bad := range [][]byte{{0xff}, {1<<3 | 2, 5, 'x'}, {1 << 3}, {1<<3 | 5, 1}, {0}} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("% x is taken", bad)
		}
	}
	m, err := Parse([]byte{1<<3 | 2, 1, 0xff})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Message(1); err == nil {
		t.Error("a field that is no message is taken for one")
	}
	if _, err := m.Map(1); err == nil {
		t.Error("a field that is no map is taken for one")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(Builder(nil).String(1, "x").Number(2, 3).Bytes(4, Builder(nil).Number(1, 1))))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data)
		if err != nil {
			return
		}
		for n := range m {
			m.Message(n) //nolint:errcheck // must not panic
			m.Map(n)     //nolint:errcheck // likewise
		}
	})
}
