package ps

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFind(t *testing.T) {
	root := t.TempDir()
	for id, state := range map[string]string{
		"ours": `{"version":1,"ociVersion":"1.3.0","id":"ours","profile":"lint","policyHash":"0123456789abcdef","network":"none",` +
			`"created":"2026-01-02T03:04:05Z","cgroup":{"driver":"cgroupfs","paths":{}}}`,
		"of-runc": `{"id":"of-runc","init_process_pid":1}`,
		"broken":  `{`,
	} {
		if err := os.Mkdir(filepath.Join(root, id), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, id, "state.json"), []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const detail = `{"policy": {"profile": {"name": "lint", "limits": {"memoryBytes": 4294967296, "pids": 1024, "wallClock": 900000000000}}}}`
	if err := os.WriteFile(filepath.Join(root, "ours", "detail.json"), []byte(detail), 0o600); err != nil {
		t.Fatal(err)
	}
	inForce := filepath.Join(root, "ours", "inforce")
	const refused = `{"kind":"syscall","what":"ptrace"}` + "\n" + `{"kind":"syscall","what":"ptrace","count":10}` + "\n" + `{"kind":"network","what":"a:1"}` + "\n" + `{"kind":"policy","what":"x"}` + "\n" + `{"ki`
	if err := errors.Join(os.Mkdir(inForce, 0o755), os.WriteFile(filepath.Join(inForce, "denials.jsonl"), []byte(refused), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	all, err := Find([]string{root, root + "/", filepath.Join(root, "none")})
	if err != nil {
		t.Fatal(err)
	}
	var mine []Entry
	for _, e := range all { // others may run on this machine
		if e.Root == root {
			mine = append(mine, e)
		}
	}
	if len(mine) != 1 || mine[0].ID != "ours" || mine[0].Profile != "lint" || mine[0].Status != "stopped" || mine[0].Network != "none" {
		t.Fatalf("found %+v", mine)
	}
	var b bytes.Buffer
	if err := Write(&b, mine, mine[0].Created.Add(90*time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(b.String()), " "); !strings.HasSuffix(got, "ours - lint none 15m0s, 4096 MiB, 1024 pids 2 stopped 0 1m30s 0123456789ab") {
		t.Errorf("table: %s", got)
	}
}
