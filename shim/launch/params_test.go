package launch

import (
	"strings"
	"testing"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentsafe/agentsafe/shim/bundle"
	"github.com/agentsafe/agentsafe/shim/cmdline"
)

func invocation() *command {
	return &command{Line: &cmdline.Line{ID: "c1", Namespace: "k8s.io"}, program: "containerd-shim-agentsafe-v2"}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The generated code of the API is the judge of both directions.
func TestParams(t *testing.T) {
	dir := "/run/containerd/s"
	in := &bootapi.BootstrapParams{
		InstanceID: "c1", Namespace: "k8s.io", LogLevel: bootapi.LogLevel_LOG_LEVEL_DEBUG, ContainerdVersion: "2.4.2",
		ContainerdBinary: "/usr/bin/containerd", SocketDir: &dir,
	}
	c := invocation()
	p := c.params(encode(t, in))
	if p == nil || p.socketDir != dir || p.logLevel != debugLevel || p.settings {
		t.Fatalf("got %+v", p)
	}
	for _, m := range []proto.Message{&runcoptions.Options{}, &runtimeoptions.Options{}, &types.MountCapabilities{}} {
		value, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{value.TypeUrl, string(m.ProtoReflect().Descriptor().FullName())} {
			value.TypeUrl = kind
			in.Extensions = []*bootapi.Extension{{}, {Value: value}}
			_, unknown := m.(*types.MountCapabilities)
			if p := c.params(encode(t, in)); p == nil || p.settings == unknown {
				t.Errorf("%s: got %+v", kind, p)
			}
		}
	}
	in.InstanceID = "another"
	if p := c.params(encode(t, in)); p != nil {
		t.Errorf("parameters of another container are taken: %+v", p)
	}
	for _, bad := range []string{"", "\x0a", "\x0a\x7fc1", "\x03", "c1", strings.Repeat("\xff", 20)} {
		if p := c.params([]byte(bad)); p != nil {
			t.Errorf("%q: got %+v", bad, p)
		}
	}
}

func TestAnswerStart(t *testing.T) {
	if got := answerStart(nil, "/run/s/1"); string(got) != "unix:///run/s/1" {
		t.Errorf("to an older containerd: %q", got)
	}
	var r bootapi.BootstrapResult
	if err := proto.Unmarshal(answerStart(&params{}, "/run/s/1"), &r); err != nil {
		t.Fatal(err)
	}
	if r.Version != 3 || r.Address != "unix:///run/s/1" || r.Protocol != "ttrpc" || len(r.Extensions) != 1 {
		t.Fatalf("got %v", &r)
	}
	if kind := r.Extensions[0].Value.TypeUrl; kind != string((&types.MountCapabilities{}).ProtoReflect().Descriptor().FullName()) {
		t.Errorf("type %q", kind)
	}
}

func TestEncodeExit(t *testing.T) {
	at := time.Unix(1700000000, 77)
	for _, e := range []*bundle.Exit{{PID: 4711, Status: 137, At: at}, {At: time.Unix(1, 0)}} {
		var r task.DeleteResponse
		if err := proto.Unmarshal(encodeExit(e), &r); err != nil {
			t.Fatal(err)
		}
		if int(r.Pid) != e.PID || int(r.ExitStatus) != e.Status || !r.ExitedAt.AsTime().Equal(e.At) {
			t.Errorf("got %v, want %+v", &r, e)
		}
	}
}

func FuzzParams(f *testing.F) {
	f.Add(encode(f, &bootapi.BootstrapParams{InstanceID: "c1", Namespace: "k8s.io", LogLevel: -8, Extensions: []*bootapi.Extension{{Value: &anypb.Any{TypeUrl: "x/containerd.runc.v1.Options"}}}}))
	f.Add([]byte("\x0a\x02c1\x12\x06k8s.io\x1d\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := invocation().params(data)
		var judge bootapi.BootstrapParams
		if proto.Unmarshal(data, &judge) != nil || p == nil {
			return // what the generated code refuses besides (kinds, UTF-8) does no harm: both names had to match
		}
		if judge.InstanceID == "c1" && judge.Namespace == "k8s.io" && (p.socketDir != judge.GetSocketDir() || p.logLevel != int32(judge.LogLevel)) {
			t.Errorf("got %+v, want %v", p, &judge)
		}
	})
}
