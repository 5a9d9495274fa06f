package profilefile

import (
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"go.yaml.in/yaml/v3"

	"github.com/agentsafe/agentsafe/profiles"
)

func TestParse_Full(t *testing.T) {
	f, err := os.Open("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, root, err := decode(f, profiles.Builtin)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"", "filesystem", "filesystem.workspace", "network", "host", "environment", "limits", "exec", "trust", "evidence", "enforcement"} {
		wantAllKeys(t, root, field)
	}
	want := &profiles.Profile{
		Name: "full", Extends: "agent", Description: "everything",
		Capabilities: []string{"CAP_CHOWN", "CAP_KILL"},
		Syscalls: profiles.Syscalls{
			Packs: []profiles.Pack{profiles.PackDebug, profiles.PackBrowser}, Allow: []string{"fanotify_mark"}, Deny: []string{"personality"},
		},
		Filesystem: profiles.Filesystem{
			Read: []string{"/"}, Execute: []string{"/usr", "$WORKSPACE"}, Write: []string{"/tmp", "$HOME", "~/.cache", "$WORKSPACE"},
			Hide: []string{"/root/.ssh", "**/.env"},
			Workspace: profiles.Workspace{
				Mode: profiles.WorkspaceOverlay, Promote: "manual", QuotaBytes: 2 << 30, MemoryBytes: 1 << 30, CopyBytes: 1 << 30, Paths: []string{"/work"}, Background: "keep",
			},
		},
		Network: profiles.Network{
			Mode: profiles.NetworkEngine, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/8")},
			Allow: []string{"*.pypi.org:443", "ssh://github.com"}, Deny: []string{"upload.pypi.org"}, RuleSets: []string{"python"},
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, DialFrom: "host",
			ConnectPorts: []profiles.PortRange{{First: 443, Last: 443}, {First: 8000, Last: 8100}}, ListenPorts: []profiles.PortRange{},
			Credentials: []profiles.Credential{{
				Name: "model", File: "/etc/key", Command: []string{"pass", "key"}, Destination: "api.example.com:443",
				Present: "bearer", BaseURLEnv: "BASE_URL", PlaceholderEnv: "API_KEY", BasePath: "/v1", Client: "npm", Inspect: true,
			}},
		},
		Host: profiles.Host{
			Namespaces: []specs.LinuxNamespaceType{specs.PIDNamespace}, Mounts: []string{"/dev/snd"},
			Devices: []profiles.Device{{Type: "c", Major: 10, Minor: 229, Access: "rw"}, {Type: "c", Major: 116, Minor: -1, Access: "rwm"}},
			Sysctls: []string{"kernel.core_pattern"},
		},
		Limits: profiles.Limits{
			MemoryBytes: 4 << 30, PIDs: 1024, CPUs: 2.5, WallClock: 15 * time.Minute, CPUTime: 90 * time.Second,
			OutputBytes: 16 << 20, OnOutput: "discard", OpenFiles: 1024, EgressBytes: 1 << 30, IngressBytes: 4 << 30, EgressConnections: 200, EgressRequests: 5000, LayerBytes: 2 << 30, LayerInodes: 100000,
		},
		Environment: profiles.Environment{
			Allow: []string{"PATH", "LC_*"}, Deny: []string{"*_TOKEN"}, Set: map[string]string{"CI": "1", "EMPTY": ""},
		},
		Exec:     profiles.Exec{Transaction: "auto", Commit: "success", WallClock: time.Minute, Base: []string{"cat /tmp/healthy"}},
		Trust:    profiles.Trust{UntrustedInput: true, Secrets: false, ExternalWrite: true, Waive: []string{"env:NPM_TOKEN"}},
		Evidence: profiles.Evidence{Mode: "on", OnFull: "gap", Denials: "kernel"},
		Landlock: profiles.LandlockBestEffort,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

// wantAllKeys checks that the file has every key of a section of the schema.
func wantAllKeys(t *testing.T, root *yaml.Node, field string) {
	t.Helper()
	n := root
	for key := range strings.SplitSeq(field, ".") {
		if key != "" {
			n = child(n, key)
		}
	}
	unknown := &yaml.Node{Kind: yaml.ScalarNode, Value: strings.Repeat("x", 20)}
	n.Content = append(n.Content, unknown, unknown)
	defer func() { n.Content = n.Content[:len(n.Content)-2] }()
	err := document(&profiles.Profile{}).read(root, "")
	_, keys, ok := strings.Cut(err.Error(), "want one of ")
	if !ok {
		t.Fatalf("%s: %v", field, err)
	}
	for key := range strings.SplitSeq(keys, ", ") {
		if child(n, key) == nil && key != "compatABIs" {
			t.Errorf("testdata/full.yaml does not have %s.%s", field, key)
		}
	}
}

// A key is enforced, or refused because it is not yet; never another error, never silence.
func TestParse_Unenforced(t *testing.T) {
	for _, text := range []string{
		"filesystem: {hide: [/root/.ssh]}", "filesystem: {workspace: {mode: overlay}}", "filesystem: {workspace: {promote: manual}}",
		"filesystem: {workspace: {quota: 1GiB}}", "filesystem: {workspace: {paths: [/work]}}", "filesystem: {workspace: {background: kill}}",
		"network: {mode: gateway}", "environment: {deny: [A]}", "environment: {allow: [A]}", "environment: {set: {A: b}}",
		"limits: {wallClock: 1m}", "limits: {cpuTime: 1m}", "limits: {outputBytes: 1MiB}", "limits: {openFiles: 10}",
		"limits: {egressBytes: 1MiB}", "limits: {layerBytes: 1MiB}", "limits: {layerInodes: 10}",
		"exec: {transaction: auto}", "exec: {wallClock: 1m}", "trust: {secrets: true}", "evidence: {mode: on}",
	} {
		_, err := Parse(strings.NewReader(head+text+"\n"), "f.yaml")
		if err != nil && (!strings.HasPrefix(err.Error(), "f.yaml:5: ") || !strings.Contains(err.Error(), ": not enforced by this version")) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// gated has room for rules of a gateway.
const gated = head + "network:\n  mode: gateway\n"

const head = "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: x}\nextends: agent\n"

// What a file does not say is the parent's; what it says replaces it, an empty list too.
func TestParse_Extends(t *testing.T) {
	parent, err := profiles.Builtin("agent")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(strings.NewReader(head), "x")
	if err != nil {
		t.Fatal(err)
	}
	parent.Name, parent.Extends, parent.Description = "x", "agent", ""
	if !reflect.DeepEqual(got, parent) {
		t.Errorf("\n got %+v\nwant %+v", got, parent)
	}
	got, err = Parse(strings.NewReader(head+"capabilities: []\nfilesystem: {write: [/tmp]}\n"), "x")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Capabilities) != 0 || !reflect.DeepEqual(got.Filesystem, profiles.Filesystem{Read: []string{"/"}, Execute: []string{"/"}, Write: []string{"/tmp"}}) {
		t.Errorf("%+v", got)
	}
}

// What people write in block style means what it says; a variable keeps its line breaks.
func TestParse_BlockStyle(t *testing.T) {
	text := strings.Replace(head, "metadata: {name: x}", "metadata:\n  name: x\n  description: >\n    one line\n    in two\n", 1) + "environment:\n  set:\n    TEXT: |\n      a\n      b\n"
	p, err := Parse(strings.NewReader(text), "x")
	if err != nil || p.Description != "one line in two" || p.Environment.Set["TEXT"] != "a\nb\n" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestParse_Errors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "f.yaml: is empty"},
		{"a comment", "# nothing\n", "f.yaml: is empty"},
		{"not YAML", head + "limits: {", "f.yaml:5: is not YAML: "},
		{"tabs", head + "limits:\n\tpids: 1\n", "f.yaml:6: is not YAML: found character that cannot start any token: indent by blanks"},
		{"a parent misspelt", strings.Replace(head, "extends: agent", "extends: agnet", 1), "f.yaml:4: extends: did you mean agent? profile \"agnet\""},
		{"not a mapping", "- a\n", "f.yaml:1: want a mapping"},
		{"two documents", head + "---\n" + head, "f.yaml: more than one document"},
		{"no version", "kind: Profile\n", "f.yaml:1: apiVersion: missing"},
		{"other version", strings.Replace(head, "/v1", "/v2", 1), `f.yaml:1: apiVersion: "agentsafe.dev/v2"`},
		{"other kind", strings.Replace(head, "Profile", "Pod", 1), `f.yaml:2: kind: "Pod"`},
		{"no name", strings.Replace(head, "{name: x}", "{}", 1), "f.yaml:1: name: is empty"},
		{"bad name", strings.Replace(head, "name: x", "name: ../x", 1), `f.yaml:3: metadata.name: "../x"`},
		{"name of a built-in", strings.Replace(head, "name: x", "name: none", 1), `f.yaml:3: metadata.name: "none"`},
		{"no parent", strings.Replace(head, "extends: agent\n", "", 1), "f.yaml:1: extends: missing"},
		{"unknown parent", strings.Replace(head, "extends: agent", "extends: nowhere", 1), "f.yaml:4: extends: profile"},
		{"parent none", strings.Replace(head, "extends: agent", "extends: none", 1), "f.yaml:4: extends: \"none\" has no rules"},
		{"unknown key", head + "sycalls: {}\n", "f.yaml:5: sycalls: is not a key of a profile, did you mean syscalls?"},
		{"unknown key below", head + "syscalls:\n  pack: []\n", "f.yaml:6: syscalls.pack: is not a key of a profile, did you mean packs?"},
		{"key twice", head + "limits: {pids: 1}\nlimits: {pids: 2}\n", "f.yaml:6: limits: is there twice"},
		{"key below twice", head + "limits:\n  pids: 1\n  pids: 2\n", "f.yaml:7: limits.pids: is there twice"},
		{"anchor", head + "capabilities: &a [KILL]\n", "f.yaml:5: anchors"},
		{"alias", head + "capabilities: &a [KILL]\nsyscalls: {allow: *a}\n", "f.yaml:5: anchors"},
		{"list for a mapping", head + "limits: []\n", "f.yaml:5: limits: want a mapping"},
		{"word for a list", head + "capabilities: KILL\n", "f.yaml:5: capabilities: want a list"},
		{"mapping in a list", head + "capabilities:\n- KILL\n- {a: b}\n", "f.yaml:7: capabilities[1]: want one value"},
		{"nothing for a list", head + "capabilities:\n", "f.yaml:5: capabilities: want a list"},
		{"nothing for a value", head + "limits: {pids: }\n", "f.yaml:5: limits.pids: want one value"},
		{"capability", head + "capabilities:\n- KILLALL\n", "f.yaml:6: capabilities: \"CAP_KILLALL\""},
		{"pack", head + "syscalls: {packs: [all]}\n", "f.yaml:5: syscalls.packs: \"all\""},
		{"syscall", head + "syscalls: {deny: [\"*\"]}\n", "f.yaml:5: syscalls: \"*\""},
		{"relative path", head + "filesystem: {write: [tmp]}\n", "f.yaml:5: filesystem.write: path \"tmp\""},
		{"pattern", head + "filesystem: {read: [/home/*/x]}\n", "f.yaml:5: filesystem.read: path"},
		{"unclean path", head + "filesystem: {read: [$HOME/../x]}\n", "f.yaml:5: filesystem.read: path"},
		{"variable", head + "filesystem: {read: [$TMPDIR]}\n", "f.yaml:5: filesystem.read: path"},
		{"range", head + "network: {allowPrivate: [10.0.0.1/8]}\n", "f.yaml:5: network.allowPrivate: network allowPrivate"},
		{"no range", head + "network: {allowPrivate: [ten]}\n", "f.yaml:5: network.allowPrivate[0]"},
		{"everything", head + "network: {allowPrivate: [0.0.0.0/0]}\n", "f.yaml:5: network.allowPrivate: network allowPrivate"},
		{"ranges without a network", head + "network:\n  mode: none\n  allowPrivate: [10.0.0.0/8]\n", "f.yaml:7: network.allowPrivate: means nothing"},
		{"port", head + "network: {connectPorts: [443, https]}\n", "f.yaml:5: network.connectPorts[1]: \"https\" is neither a port nor a range"},
		{"port too high", head + "network: {listenPorts: [65536]}\n", "f.yaml:5: network.listenPorts[0]: \"65536\" is neither"},
		{"negative port", head + "network: {listenPorts: [-1]}\n", "f.yaml:5: network.listenPorts[0]: \"-1\" is neither"},
		{"ports backwards", head + "network:\n  connectPorts:\n  - 443\n  - 90-80\n", "f.yaml:8: network.connectPorts[1]: \"90-80\": the range ends before it begins"},
		{"port 0", head + "network: {connectPorts: [0]}\n", "f.yaml:5: network.connectPorts: nobody can connect to port 0"},
		{"all ports", head + "network: {connectPorts: [1-65535]}\n", "f.yaml:5: network.connectPorts: 65535 ports, at most 1024: without the list all are granted"},
		{"ports without Landlock", head + "network:\n  listenPorts: [80]\nenforcement: {landlock: off}\n", "f.yaml:6: network.listenPorts: means nothing with enforcement.landlock off"},
		{"ports and raw sockets", head + "capabilities: [NET_RAW]\nnetwork: {connectPorts: []}\n", "f.yaml:6: network.connectPorts: does not go with CAP_NET_RAW"},
		{"ports and every socket", head + "syscalls: {allow: [socket]}\nnetwork: {connectPorts: []}\n", "f.yaml:6: network.connectPorts: does not go with syscalls.allow socket"},
		{"a rule on a port that can't be connected to", gated + "  allow:\n  - a.example:443\n  - ssh://b.example\n  connectPorts: [443]\n", "f.yaml:9: network.allow: ssh://b.example is on no port of network.connectPorts: say one of the two"},
		{"namespace", head + "host: {namespaces: [mount]}\n", "f.yaml:5: host.namespaces: \"mount\""},
		{"relative mount", head + "host: {mounts: [docker.sock]}\n", "f.yaml:5: host.mounts"},
		{"device", head + "host: {devices: [/dev/fuse]}\n", "f.yaml:5: host.devices[0]: device"},
		{"size", head + "limits: {memory: 4GB}\n", "f.yaml:5: limits.memory: \"4GB\""},
		{"size too large", head + "limits: {memory: 9999999999GiB}\n", "f.yaml:5: limits.memory"},
		{"negative", head + "limits: {pids: -1}\n", "f.yaml:5: limits.pids"},
		{"not a number", head + "limits: {cpus: .nan}\n", "f.yaml:5: limits"},
		{"not a number either", head + "limits: {cpus: NaN}\n", "f.yaml:5: limits.cpus: out of range"},
		{"landlock", head + "enforcement: {landlock: maybe}\n", "f.yaml:5: enforcement.landlock"},
		{"allowed and denied", head + "syscalls:\n  allow: [ptrace]\n  deny:\n  - bpf\n  - ptrace\n", "f.yaml:9: syscalls.deny: ptrace is in syscalls.allow, too"},
		{"every variable kept", head + "environment:\n  allow:\n  - CI\n  - \"*\"\n", "f.yaml:8: environment.allow: \"*\" matches every variable"},
		{"every variable removed", head + "environment: {deny: [\"**\"]}\n", "f.yaml:5: environment.deny: \"**\" matches every variable"},
		{"set and removed", head + "environment: {deny: [\"C*\"], set: {CI: \"1\"}}\n", "f.yaml:5: environment.deny: \"C*\" removes CI"},
		{"hidden and granted", head + "filesystem:\n  hide: [/srv, /opt]\n  write: [/opt/x]\n", "f.yaml:6: filesystem.hide: /opt covers /opt/x"},
		{"everything hidden", head + "filesystem: {hide: [\"/**\"]}\n", "f.yaml:5: filesystem.hide: pattern \"/**\": its last component matches everything"},
		{"the root hidden", head + "filesystem: {hide: [/]}\n", "f.yaml:5: filesystem.hide: path \"/\" would hide everything"},
		{"hidden upwards", head + "filesystem: {hide: [/srv/../etc]}\n", "f.yaml:5: filesystem.hide: path"},
		{"layers in more memory than there is", head + "limits: {memory: 1GiB}\nfilesystem:\n  workspace:\n    mode: overlay\n    memory: 1GiB\n", "f.yaml:9: filesystem.workspace.memory: counts against limits.memory"},
		{"a quota of nothing", head + "filesystem:\n  workspace:\n    mode: direct\n    quota: 1GiB\n", "f.yaml:8: filesystem.workspace.quota: means nothing"},
		{"read-only and written", head + "filesystem: {write: [$WORKSPACE/out], workspace: {mode: readonly}}\n", "f.yaml:5: filesystem.write: $WORKSPACE/out can't be written"},
		{"a host allowed and denied", gated + "  allow: [\"example.org:443\"]\n  deny: [\"example.org:443\"]\n", "f.yaml:8: network.deny: \"example.org:443\" is in network.allow, too"},
		{"a credential for nobody", gated + "  credentials:\n  - {name: a, file: /k, destination: a.test, present: bearer}\n  - {name: b, file: /k, destination: b.test:8443, present: bearer, inspect: true, placeholderEnv: B}\n", "f.yaml:9: network.credentials: b is for requests to b.test:8443, and they do not pass: no rule allows b.test:8443"},
		{"a host in capitals", gated + "  allow:\n  - example.org:443\n  - GET http://Example.org:80/Path\n", "f.yaml:9: network.allow: \"GET http://Example.org:80/Path\": write the name in lower case: example.org:80"},
		{"a dot behind a host", gated + "  allow: [\"example.org.:443\"]\n", "f.yaml:7: network.allow: network rule \"example.org.:443\": a trailing dot"},
		{"an address in disguise", gated + "  allow: [\"0x7f000001:443\"]\n", "f.yaml:7: network.allow: network rule \"0x7f000001:443\""},
		{"a host beyond ASCII", gated + "  allow: [\"b\u00fccher.example:443\"]\n", "f.yaml:7: network.allow: network rule"},
		{"an asterisk within", gated + "  allow: [\"ex*mple.org:443\"]\n", "f.yaml:7: network.allow: network rule"},
		{"every host, untrusted input", strings.Replace(gated, "extends: agent", "extends: build", 1) + "  allow: [\"*:443\"]\ntrust: {externalWrite: false}\n", "f.yaml:8: trust.externalWrite: is false, but network.allow *:443"},
		{"an empty name", head + "capabilities: [\"\"]\n", "f.yaml:5: capabilities"},
		{"a bomb of aliases", head + "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nlimits: *c\n", "f.yaml:5: anchors"},
		{"escape sequence", head + "capabilities: [\"KILL\\e[2J\"]\n", "f.yaml:5: \"KILL\\x1b[2J\": has a control character"},
		{"escape sequence in a key", head + "\"limits\\e\": {}\n", "f.yaml:5: \"limits\\x1b\": has a control character"},
		{"text that reads backwards", strings.Replace(head, "{name: x}", "{name: x, description: \"safe \u202eeruces\"}", 1), "f.yaml:3: \"safe \\u202eeruces\": has a control character"},
		{"a zero byte", head + "filesystem: {read: [\"/usr\\0\"]}\n", "f.yaml:5: \"/usr\\x00\": has a control character"},
		{"two lines for one", head + "filesystem:\n  read:\n  - |\n    /usr\n    /etc\n", "f.yaml:7: filesystem.read[0]: has a line break"},
		{"two lines for a description", strings.Replace(head, "{name: x}", "{name: x, description: \"a\\nb\"}", 1), "f.yaml:3: metadata.description: has a line break"},
		{"merge key", head + "limits: {<<: {pids: 1}}\n", "f.yaml:5: limits.<<: is not a key"},
		{"binary", head + "limits: {pids: !!binary MTA=}\n", "f.yaml:5: limits.pids: \"MTA=\" is not a positive number"},
		{"UTF-16", "\xff\xfea\x00:\x00", "f.yaml:1: "},
		{"not UTF-8", head + "capabilities: [\xff]\n", "f.yaml: is not YAML: "},
		{"a list without end", head + "capabilities: [" + strings.Repeat("KILL,", 5000) + "KILL]\n", "f.yaml:5: capabilities: 5001 entries, at most 4096"},
		{"hexadecimal", head + "limits: {pids: 0x10}\n", "f.yaml:5: limits.pids: \"0x10\""},
		{"ten megabytes", head + strings.Repeat("# line\n", 10<<20/7), "f.yaml: larger than"},
		{"too large", head + "#" + strings.Repeat("x", maxBytes), "f.yaml: larger than"},
		{"too deep", head + "limits: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\n", "f.yaml:5: too deep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Parse(strings.NewReader(c.text), "f.yaml")
			if err == nil {
				t.Fatalf("parsed as %+v", p)
			}
			if !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("\n got %v\nwant %s", err, c.want)
			}
		})
	}
}

// FuzzParse: whatever parses is a valid profile.
func FuzzParse(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte(head))
	f.Add([]byte(head + "limits: {memory: 1KiB}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(strings.NewReader(string(data)), "fuzz")
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		if p.Unrestricted || p.Name == "" {
			t.Errorf("%+v", p)
		}
	})
}
