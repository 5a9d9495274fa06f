package container

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/initproc"
	"github.com/agentsafe/agentsafe/runtime/lazyjson"
)

// TestStateFiles: the files are plain JSON for whoever else reads them, and come back as they were.
func TestStateFiles(t *testing.T) {
	profile, err := profiles.Builtin(profiles.DefaultName)
	if err != nil {
		t.Fatal(err)
	}
	limit, score := int64(7), -5
	for _, in := range []any{
		&State{}, &Detail{},
		&State{
			Version: stateVersion, ID: "a", Bundle: "/b <&> \"c\"", Created: time.Unix(1, 2).UTC(), InitPID: 4, InitStart: 1 << 60,
			Annotations: map[string]string{"b": "ä\n", "a": ""}, Network: netns.ModeEngine, OwnPID: true,
			Cgroup: CgroupPaths{Driver: "cgroupfs", Paths: map[string]string{"": "/x", "cpu": "/y"}},
		},
		&Detail{
			Process: &specs.Process{
				Args: []string{"a", "\xff"}, Env: []string{}, Cwd: "/", OOMScoreAdj: &score,
				Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL"}},
				Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_CPU", Hard: 1<<64 - 1}},
			},
			Hooks: &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/true", Args: []string{"x"}}}},
			Policy: &Policy{
				Profile: profile, Hash: "00", Seccomp: [][]byte{{1, 2, 3, 255}, {}}, Notes: []profiles.Note{{Rule: "r", Text: "t"}},
				Network:  netns.Policy{Mode: netns.ModeNone, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
				Landlock: &initproc.Landlock{HandledFS: 1 << 63, Paths: []initproc.LandlockPath{{Path: "/", Access: 1}}},
			},
			Cgroup: &cgroup.State{
				Driver: "cgroupfs", Paths: map[string]string{"": "/x"},
				Cgroup: &cgroups.Cgroup{Name: "n", Path: "p", Resources: &cgroups.Resources{
					PidsLimit: &limit, Devices: []*devices.Rule{{Type: 'c', Major: 1, Minor: -1, Permissions: "rw", Allow: true}},
				}},
			},
			StartTable: &initproc.Table{},
		},
	} {
		want, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		data, err := lazyjson.Marshal(in)
		if err != nil || string(data) != string(want) {
			t.Errorf("%T is written as %s, %v\nwant %s", in, data, err, want)
		}
		back, wantBack := reflect.New(reflect.TypeOf(in).Elem()), reflect.New(reflect.TypeOf(in).Elem())
		err, wantErr := lazyjson.Unmarshal(want, back.Interface()), json.Unmarshal(want, wantBack.Interface())
		if !reflect.DeepEqual(err, wantErr) || !reflect.DeepEqual(back.Interface(), wantBack.Interface()) {
			t.Errorf("%T is read as %+v, %v\nwant %+v, %v", in, back, err, wantBack, wantErr)
		}
	}
}
