package limits

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestLayerBytes fills the layers of a workspace through every door: the task gets ENOSPC and goes on, the folder does not
// change, and the limit is told by its name.
func TestLayerBytes(t *testing.T) {
	if unix.Access("/dev/loop-control", unix.R_OK) != nil {
		t.Skip("probe /dev/loop-control: a quota needs loop devices")
	}
	for _, d := range doors(t) {
		t.Run(d.name, func(t *testing.T) {
			folder := box.TempDir(t)
			r := d.run(t, "room", "cd "+folder+" && dd if=/dev/zero of=big bs=64k count=500; echo it goes on; exit 3", folder)
			if r.Exit != 3 || !strings.Contains(r.Stdout, "it goes on") || !strings.Contains(r.Stderr, "No space left on device") {
				t.Errorf("want ENOSPC, and 3:\n%v", r)
			}
			if !d.mute && !strings.Contains(r.Stderr, "has filled the layers of "+folder+": 4194304 bytes are allowed") {
				t.Errorf("the reason is not told:\n%v", r)
			}
			r.wantLimits(t, "", "layers")
			if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
				t.Errorf("the folder has changed: %v, %v", left, err)
			}
		})
	}
}

// TestLayerBytes_Told: while a container runs, its state and its events have the limit, and it is told itself.
func TestLayerBytes_Told(t *testing.T) {
	if unix.Access("/dev/loop-control", unix.R_OK) != nil {
		t.Skip("probe /dev/loop-control: a quota needs loop devices")
	}
	folder := box.TempDir(t)
	d := box.Bare(t, harness.Peer{Name: "room", Path: wrapper("room")})
	bundle := d.Up(t, func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: folder, Type: "bind", Source: folder, Options: []string{"rbind"}})
	})
	events := box.Start(t, harness.Cmd{Args: d.Args("events", "--interval", "1s", bundle.ID)})
	waitFor(t, events, "stats")
	d.Do(t, "exec", bundle.ID, "sh", "-c", "dd if=/dev/zero bs=64k count=500 of="+folder+"/big")
	if data := waitFor(t, events, "layers"); string(data) != `{"full":1}` {
		t.Errorf("layers: %s", data)
	}
	var s struct {
		Status string
		End    struct {
			Reason, Message string
			LayersFull      int
		}
	}
	if err := json.Unmarshal([]byte(d.Must(t, "state", bundle.ID)), &s); err != nil || s.End.LayersFull != 1 || s.End.Reason != "" || s.Status != "running" {
		t.Errorf("state: %+v, %v", s, err)
	}
	if text := d.Must(t, "exec", bundle.ID, "sh", "-c", "cat $AGENTSAFE_DENIALS"); !strings.Contains(text, `"what":"layers"`) {
		t.Errorf("the container is told %s", text)
	}
	d.Must(t, "delete", "--force", bundle.ID)
	events.Wait(t)
}

// TestEgressBytes: what a task may send is used up in the middle of a connection, which is reset, and the next one is
// refused; through every door, and told by its name.
func TestEgressBytes(t *testing.T) {
	box.StartOutside(t)
	send := fmt.Sprintf("head -c 3000000 /dev/zero | nc %s %s; echo it goes on; echo more | nc %[1]s %[2]s; exit 3", harness.Outside, harness.OutsidePort)
	for _, d := range doors(t) {
		t.Run(d.name, func(t *testing.T) {
			r := d.run(t, "sends", send)
			if r.Exit != 3 || !strings.Contains(r.Stdout, "it goes on") {
				t.Errorf("want 3:\n%v", r)
			}
			if !d.mute && !strings.Contains(r.Stderr, `has met a limit of profile "sends": the 65536 bytes that may be sent are used up (limits.egressBytes)`) {
				t.Errorf("the reason is not told:\n%v", r)
			}
			r.wantLimits(t, "", "egress")
			r = d.run(t, "sends", fmt.Sprintf("echo little | nc %s %s", harness.Outside, harness.OutsidePort))
			if r.Exit != 0 {
				t.Errorf("a little:\n%v", r)
			}
			r.wantLimits(t, "")
		})
	}
	d := box.Bare(t, harness.Peer{Name: "sends", Path: wrapper("sends")})
	bundle := d.Up(t, nil)
	events := box.Start(t, harness.Cmd{Args: d.Args("events", "--interval", "1s", bundle.ID)})
	waitFor(t, events, "stats")
	d.Do(t, "exec", bundle.ID, "sh", "-c", send)
	if data := waitFor(t, events, "egress"); string(data) != `{"cut":1}` {
		t.Errorf("egress: %s", data)
	}
	d.Must(t, "delete", "--force", bundle.ID)
	events.Wait(t)
}
