package network

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestRefusedPackets: what the kernel refuses by itself is in the gateway's list as well, with the name that it was meant for.
func TestRefusedPackets(t *testing.T) {
	const script = `python3 - <<'E'
import json, socket, time, urllib.request
def refused(family, to, kind=socket.SOCK_DGRAM):
    s = socket.socket(family, kind)
    try:
        s.connect(to)
        s.send(b"x" * 40)
        print(to, "has left")
    except PermissionError:
        pass
refused(socket.AF_INET, ("` + public4 + `", 443))
refused(socket.AF_INET6, ("` + public6 + `", 8443))
refused(socket.AF_INET, (socket.gethostbyname("example.com"), 123))
for _ in range(600):
    said = json.load(urllib.request.urlopen("http://gateway.agentsafe.internal/"))["refused"]
    packets = [[r.get("name", ""), r["address"], r["port"], r["protocol"], r["code"]] for r in said if r["event"] == "packet"]
    if len(packets) >= 3:
        break
    time.sleep(0.1)
print(json.dumps(packets))
E`
	r := run(t, rules("example.com"), script)
	var got [][]any
	if err := json.Unmarshal([]byte(r.out.Stdout), &got); err != nil || len(got) != 3 {
		t.Fatalf("%v", r)
	}
	for i, want := range [][]any{
		{"", public4, 443.0, "udp", "wrong-protocol"}, {"", public6, 8443.0, "udp", "wrong-protocol"}, {"example.com", got[2][1], 123.0, "udp", "wrong-protocol"},
	} {
		for k := range want {
			if got[i][k] != want[k] {
				t.Errorf("packet %d is %v, want %v", i, got[i], want)
			}
		}
	}
}

// TestAttack_GatewayNeverUp: a gateway that fails when its container is started leaves the container without a network, and
// then ends it and says why.
func TestAttack_GatewayNeverUp(t *testing.T) {
	administer(t, profileFile(t, rules("http://example.com")+"evidence: {mode: \"on\"}\n"))
	_, peer := harness.Peers(t)
	programs := box.TempDir(t)
	for _, name := range []string{"agentsafe", "agentsafe-monitor", "agentsafe-seccomp"} {
		if err := place(filepath.Join(filepath.Dir(peer.Path), name), filepath.Join(programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	broken, err := exec.LookPath("false")
	if err == nil {
		err = place(broken, filepath.Join(programs, "agentsafe-gateway"))
	}
	if err != nil {
		t.Fatal(err)
	}
	peer.Path = filepath.Join(programs, "agentsafe")
	d, before := box.Bare(t, peer), len(outside.requests())
	b := d.Create(t, harness.Sh("while :; do wget -qO- http://example.com/ && echo; wget -qO- http://"+public4+"/ && echo; done"))
	if r := d.Do(t, "start", b.ID); r.Exit != 0 {
		t.Logf("start says it already: %v", r)
	}
	d.WaitStatus(t, b.ID, "stopped")
	end, err := os.ReadFile(filepath.Join(d.Root, b.ID, "end.json"))
	if err != nil || !strings.Contains(string(end), "lost its gateway") || !strings.Contains(string(end), "supervisor") {
		t.Errorf("why it was ended: %s (%v)", end, err)
	}
	if left := outside.requests()[before:]; len(left) > 0 {
		t.Errorf("%q has left", left)
	}
	var said harness.Result
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && !strings.Contains(said.Stdout, "lost its gateway"); {
		said = box.Run(t, harness.Cmd{Args: []string{ctl(t), "audit", "show", "--json", b.ID}})
	}
	if !strings.Contains(said.Stdout, "lost its gateway") {
		t.Errorf("the evidence does not say why: %v", said)
	}
}
