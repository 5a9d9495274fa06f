package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/runtime/denials"
)

const narrowProfile = `apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: narrow}
extends: lint
filesystem:
  read: [/usr, /lib, /lib64, /bin, /etc, $WORKSPACE]
  execute: [/usr, /lib, /lib64, /bin]
  write: [/tmp]
  hide: []
`

// A run under a profile names each refusal, the rule, and what would allow it, and keeps the command's status.
func TestProfileTest(t *testing.T) {
	b := newBench(t)
	if err := os.WriteFile(filepath.Join(b.workspace, "narrow.yaml"), []byte(narrowProfile), 0o644); err != nil {
		t.Fatal(err)
	}
	job := `unshare -U true; touch new; ls /var; cp /bin/true /tmp/t; /tmp/t; (sleep 0.01 & wait)
python3 -c 'import socket; socket.create_connection(("1.1.1.1", 53), 1)'; exit 3`
	out, err := b.in("profile", "test", "-q", "./narrow.yaml", "--", "sh", "-c", job)
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 3 { //nolint:errorlint // exec's own
		t.Errorf("%v", err)
	}
	for _, want := range []string{
		"unshare EPERM built-in list of refused calls syscalls: {packs: [containers]}",
		"write " + b.workspace + "/new EROFS mount",
		"read /var EACCES filesystem.read filesystem: {read: [..., /var]}",
		"execute /tmp/t EACCES filesystem.execute filesystem: {execute: [..., /tmp]}",
		`1.1.1.1:53 ENETUNREACH network.mode none network: {mode: gateway, allow: ["1.1.1.1:53"]}`,
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, err = b.in("profile", "test", "-q", "--json", "./narrow.yaml", "sh", "-c", "exec 2>&-; ls /var")
	var got struct {
		ExitCode int              `json:"exitCode"`
		Denials  []denials.Denial `json:"denials"`
	}
	if jerr := json.Unmarshal([]byte(out), &got); err == nil || jerr != nil || got.ExitCode != 2 || len(got.Denials) == 0 || got.Denials[len(got.Denials)-1].What != "read /var" {
		t.Errorf("%v, %v\n%s", err, jerr, out)
	}
	if out, err := b.in("profile", "test", "-q", "agent", "--", "true"); err != nil || out != "agentsafectl: nothing was refused\n" {
		t.Errorf("%v\n%s", err, out)
	}
	// What the list says is enough.
	wider := strings.Replace(narrowProfile, "$WORKSPACE]", "$WORKSPACE, /var]", 1)
	if err := os.WriteFile(filepath.Join(b.workspace, "narrow.yaml"), []byte(wider), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := b.in("profile", "test", "-q", "./narrow.yaml", "--", "ls", "/var"); err != nil || strings.Contains(out, "/var EACCES") {
		t.Errorf("%v\n%s", err, out)
	}
}
