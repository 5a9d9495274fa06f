package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/runtime/container"
)

func ctl(args ...string) (string, error) {
	var out bytes.Buffer
	c := newRootCommand()
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

func TestConfigApply(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, container.ConfigSource), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := ctl("config", "apply", "--config-dir", dir); err != nil || !strings.Contains(out, "the defaults hold") {
		t.Errorf("without a file: %q, %v", out, err)
	}
	write("default = \"ci\"\nselectable = [\"agent\"]\nlandlock = \"best-effort\"\n[handlers.ci]\nprofile = \"agent\"\n[handlers.trial]\nprofile = \"lint\"\nenforcement = \"warn\"\n")
	if out, err := ctl("config", "check", "--config-dir", dir); err != nil || out != "ok\n" {
		t.Errorf("check: %q, %v", out, err)
	}
	if out, err := ctl("config", "apply", "--config-dir", dir); err != nil || out != "applied\n" {
		t.Errorf("apply: %q, %v", out, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, container.ConfigCompiled))
	if err != nil || !strings.Contains(string(data), `"default": "ci"`) || !strings.Contains(string(data), `"best-effort"`) {
		t.Errorf("%s, %v", data, err)
	}
	for text, want := range map[string]string{
		"default = \"agent\"\nselctable = []\n": "line 2: [selctable]: is not a key",
		"default = \"nowhere\"\n":               "default: profile \"nowhere\"",
		"default = agent\n":                     "line 1, column",
		"[handlers.ci]\nprofle = \"agent\"\n":   "line 2: [handlers ci profle]: is not a key",
		"[handlers.ci]\n":                       "handlers.ci: want one profile",
		"landlock = \"off\"\n":                  "landlock: \"off\"",
		"default = \"ci\"\n[handlers.ci]\nprofile = \"agent\"\nenforcement = \"warn\"\n": "default: \"ci\" only warns",
		"[handlers.ci]\nprofile = \"agent\"\nenforcement = \"off\"\n":                    "handlers.ci.enforcement: \"off\"",
		"selectable = [\"../../etc/shadow\"]\n":                                          "selectable: profile \"../../etc/shadow\": not a name",
		"default = \"agent\"\ndefault = \"none\"\n":                                      "line 2",
		"default = [\"agent\"]\n":                                                        "line 1",
		"selectable = \"agent\"\n":                                                       "line 1",
		strings.Repeat("[", 1000) + "\n":                                                 "line 1",
		"[network]\ninspectKey = \"/x\"\n":                                               "network.inspectCertificate, inspectKey: want both",
		"[network]\ninspectCertificate = \"a.pem\"\ninspectKey = \"a.key\"\n":            "want absolute paths",
		"[network]\ndialFrom = \"hsot\"\n":                                               "network.dialFrom: \"hsot\" is neither",
		"[network]\nallowWhileRunning = [\"*.\"]\n":                                      "network.allowWhileRunning: network rule \"*.\"",
		"[network]\ndialfrm = \"host\"\n":                                                "line 2: [network dialfrm]: is not a key",
		"[handlers.ci]\nprofile = \"agent\"\nrecord = \"../x\"\n":                        "handlers.ci.record: \"../x\" is not a name",
		"[record]\nnames = [\"a b\"]\n":                                                  "record.names: \"a b\" is not a name",
		"[record]\nname = \"a\"\n":                                                       "line 2: [record name]: is not a key",
	} {
		write(text)
		if _, err := ctl("config", "check", "--config-dir", dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
