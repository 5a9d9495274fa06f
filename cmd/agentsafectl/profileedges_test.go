package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const placedProfile = `apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: placed}
extends: lint
filesystem:
  read:
    - /usr
    - $WORKSPACE/src
    - /opt/data
  hide: [/usr/share/secret]
network:
  connectPorts: [443]
syscalls:
  deny:
    - ptrace
    - chroot
`

// explain says on which line the deciding rule stands, or whose it is.
func TestProfileExplain_Places(t *testing.T) {
	b := newBench(t)
	denied := `{"kind":"note","what":"something was lost"}
{"kind":"file","what":"write /etc/x","answer":"EACCES","rule":"filesystem.write","allow":"filesystem: {write: [..., /etc]}"}
{"kind":"limit","what":"pids","answer":"EAGAIN","rule":"limits.pids"}

{"kind":"network","what":"connect TCP port 22","rule":"network.connectPorts"}
`
	for name, text := range map[string]string{"placed.yaml": placedProfile, "denials.jsonl": denied} {
		if err := os.WriteFile(filepath.Join(b.workspace, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.in("profile", "explain", "./placed.yaml", "--path", "/opt/data/x", "--path", "/usr/share/secret/y", "--path", "/job/src/a.c", "--workspace", "/job", "--syscall", "chroot,ptrace,read",
		"--connect", "22,443", "--listen", "80", "--host", "example.com:443", "--env", "A_TOKEN", "--denials", "denials.jsonl")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"syscall chroot: refused by syscalls.deny, ./placed.yaml:14 ", // the entry is the question's, not the rule's
		"syscall read: allowed by built-in list of calls\n",
		"path /job/src/a.c: allowed by filesystem.read /job/src, ./placed.yaml:8 ",
		"path /opt/data/x: allowed by filesystem.read /opt/data, ./placed.yaml:9 ",
		"path /opt/data/x: refused by filesystem.write, inherited from lint ",
		"path /usr/share/secret/y: hidden by filesystem.hide /usr/share/secret, ./placed.yaml:10 ",
		"host example.com:443: refused by network.mode none, inherited from lint ",
		"variable A_TOKEN: removed by environment.deny *_TOKEN, inherited from lint",
		"connect 22: refused by network.connectPorts, ./placed.yaml:12 ",
		"connect 443: allowed by network.connectPorts 443, ./placed.yaml:12 ",
		"listen 80: allowed by network.listenPorts",
		"file write /etc/x: refused by filesystem.write, inherited from lint\n    allowed by filesystem: {write: [..., /etc]}\n",
		"limit pids: refused by limits.pids, inherited from lint\n",
		"network connect TCP port 22: refused by network.connectPorts, ./placed.yaml:12\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, err = b.in("profile", "explain", "./placed.yaml", "--json", "--connect", "22")
	var list []explanation
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list) != 1 || list[0].Where != "./placed.yaml:12" || list[0].Verdict != "refused" {
		t.Errorf("%v\n%s", err, out)
	}
}

// What a person gets wrong ends with 125 and says what to write, before anything is run.
func TestProfileCommands_Mistakes(t *testing.T) {
	b := newBench(t)
	for name, text := range map[string]string{
		"good.yaml": placedProfile, "bad.yaml": strings.Replace(placedProfile, "connectPorts: [443]", "connectPort: [443]", 1), "bad.jsonl": "no\n",
	} {
		if err := os.WriteFile(filepath.Join(b.workspace, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"name something to explain", []string{"explain", "lint"}},
		{"--path etc: not absolute", []string{"explain", "lint", "--path", "etc"}},
		{"--connect 65536: not a port", []string{"explain", "lint", "--connect", "65536"}},
		{"bad.jsonl:1: ", []string{"explain", "lint", "--denials", "bad.jsonl"}},
		{"no such file", []string{"explain", "lint", "--denials", "none.jsonl"}},
		{"./bad.yaml:12: network.connectPort: is not a key of a profile, did you mean connectPorts?", []string{"check", "./bad.yaml", "./good.yaml"}},
		{"profile \"placed\" is valid", []string{"check", "./bad.yaml", "./good.yaml"}},
		{"--name \"Two Words\": want lower-case letters", []string{"generate", "--name", "Two Words", "--", "touch", "ran"}},
		{"--name \"lint\" is the name of a built-in profile", []string{"generate", "--name", "lint", "--", "touch", "ran"}},
		{"--output: ", []string{"generate", "-o", "no/such/folder.yaml", "--", "touch", "ran"}},
		{"none.yaml: no such file", []string{"show", "./none.yaml"}},
		{"nosuch", []string{"show", "nosuch"}},
		{"; did you mean lint?", []string{"show", "lnit"}},
		{"; the file of this name is ./good.yaml", []string{"show", "good.yaml"}},
	} {
		out, err := b.in(append([]string{"profile"}, c.args...)...)
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != exitOwn || !strings.Contains(out, c.want) {
			t.Errorf("%v: %v, want %q\n%s", c.args, err, c.want, out)
		}
	}
	if _, err := os.Stat(filepath.Join(b.workspace, "ran")); err == nil {
		t.Error("a command ran whose profile could not be written")
	}
	var list []checked
	out, err := b.in("profile", "check", "--json", "./bad.yaml", "./good.yaml")
	if err == nil || json.Unmarshal([]byte(out), &list) != nil || len(list) != 2 || list[0].Valid || !list[1].Valid || list[1].Name != "placed" {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := b.in("profile", "diff", "lint", "lint"); err != nil || out != "lint and lint grant the same\n" {
		t.Errorf("%v\n%s", err, out)
	}
	var all []listed
	if out, err := b.in("profile", "list", "--json"); err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) < 13 || all[0].Name != "none" || !all[0].BuiltIn {
		t.Errorf("%v\n%s", err, out)
	}
}
