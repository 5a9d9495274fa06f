package container

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/profiles"
)

// configDir is a host's configuration with the profiles tight (below agent) and loose (above it).
func configDir(t *testing.T, c *HostConfig) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("probe root: files of the configuration belong to root")
	}
	dir := t.TempDir()
	for name, change := range map[string]func(*profiles.Profile){
		"tight": func(p *profiles.Profile) { p.Network = profiles.Network{} },
		"loose": func(p *profiles.Profile) { p.Syscalls.Packs = []profiles.Pack{profiles.PackDebug} },
	} {
		p, err := profiles.Builtin(profiles.NameAgent)
		if err != nil {
			t.Fatal(err)
		}
		change(p)
		p.Name = name
		writeJSON(t, filepath.Join(dir, profilesName, name+".json"), p)
	}
	if c != nil {
		writeJSON(t, filepath.Join(dir, ConfigCompiled), c)
	}
	return dir
}

func writeJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestChoose(t *testing.T) {
	selectable := &HostConfig{Default: "ci", Selectable: []string{"loose"}, Handlers: []Handler{{Name: "ci", Profile: "tight"}}}
	for _, c := range []struct {
		name        string
		config      *HostConfig
		annotations map[string]string
		env         []string
		want        string // the profile, or the beginning of the error
	}{
		{"nothing", nil, nil, nil, "agent"},
		{"the host's default by a handler", selectable, nil, nil, "tight"},
		{"tighter by annotation", nil, map[string]string{"agentsafe.dev/profile": "tight"}, nil, "tight"},
		{"tighter by variable", nil, nil, []string{"AGENTSAFE_PROFILE=tight"}, "tight"},
		{"looser by annotation", nil, map[string]string{"agentsafe.dev/profile": "loose"}, nil, `refused: annotation agentsafe.dev/profile=loose: it grants more than the profile "agent" that is in force: syscalls.packs`},
		{"none by annotation", nil, map[string]string{"agentsafe.dev/profile": "none"}, nil, `refused: annotation agentsafe.dev/profile=none: it grants more than the profile "agent" that is in force: unrestricted`},
		{"selectable by annotation", selectable, map[string]string{"agentsafe.dev/profile": "loose"}, nil, "loose"},
		{"selectable by variable, which can be the image's", selectable, nil, []string{"AGENTSAFE_PROFILE=loose"}, "refused: variable AGENTSAFE_PROFILE=loose"},
		{"a variable after an annotation", selectable, map[string]string{"agentsafe.dev/profile": "loose"}, []string{"AGENTSAFE_PROFILE=tight"}, "tight"},
		{"unknown profile", nil, map[string]string{"agentsafe.dev/profile": "nowhere"}, nil, "annotation agentsafe.dev/profile: profile \"nowhere\": not built in"},
		{"a path", nil, map[string]string{"agentsafe.dev/profile": "../../tmp/x"}, nil, "annotation agentsafe.dev/profile: profile \"../../tmp/x\": not a name"},
		{"unknown annotation", nil, map[string]string{"agentsafe.dev/netwrok": "none"}, nil, "annotation agentsafe.dev/netwrok: not a key"}, //nolint:misspell // a typing error, which is the test
		{"unknown variable", nil, nil, []string{"AGENTSAFE_TEST=1", "AGENTSAFE=2"}, "agent"},
		{"others' annotations", nil, map[string]string{"org.example/network": "off"}, nil, "agent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Runtime{opts: Options{ConfigDir: configDir(t, c.config)}}
			chosen, err := r.choose(&specs.Spec{Annotations: c.annotations, Process: &specs.Process{Env: c.env}})
			var got string
			if err != nil {
				got = err.Error()
			} else {
				got = chosen.profile.Name
			}
			if !strings.HasPrefix(got, c.want) || err == nil && got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestChoose_Tightens(t *testing.T) {
	r := &Runtime{opts: Options{ConfigDir: configDir(t, nil)}}
	chosen, err := r.choose(&specs.Spec{
		Annotations: map[string]string{"agentsafe.dev/memory": "1GiB", "agentsafe.dev/network": "none"},
		Process:     &specs.Process{Env: []string{"AGENTSAFE_MEMORY=2GiB", "AGENTSAFE_DROP_CAPABILITIES=all"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if p := chosen.profile; p.Limits.MemoryBytes != 1<<30 || p.Network.Mode != profiles.NetworkNone || len(p.Capabilities) != 0 {
		t.Errorf("%+v", p)
	}
	if len(chosen.notes) != 4 {
		t.Error(chosen.notes)
	}
}

// A recording is the administrator's to allow, by annotation or for a handler, and changes nothing of the policy.
func TestChoose_Recording(t *testing.T) {
	config := &HostConfig{
		Handlers: []Handler{{Name: "learn", Profile: "agent", Record: "jobs"}, {Name: "other", Profile: "agent"}}, Record: HostRecord{Names: []string{"shop"}},
	}
	for _, c := range []struct {
		handler, annotation string
		env                 []string
		want                string // the recording, or what the error says
	}{
		{"", "", nil, ""},
		{"other", "", nil, ""},
		{"learn", "", nil, "jobs"},
		{"", "shop", nil, "shop"},
		{"learn", "shop", nil, "shop"},
		{"", "jobs", nil, "refused: annotation agentsafe.dev/record=jobs: the administrator has not released"},
		{"learn", "jobs", nil, "refused: annotation agentsafe.dev/record=jobs"},
		{"", "../../etc/x", nil, "is not a name"},
		{"", "", []string{"AGENTSAFE_RECORD=shop"}, ""},
	} {
		r := &Runtime{opts: Options{ConfigDir: configDir(t, config), Handler: c.handler}}
		spec := &specs.Spec{Annotations: map[string]string{}, Process: &specs.Process{Env: c.env}}
		if c.annotation != "" {
			spec.Annotations[profiles.RecordAnnotation] = c.annotation
		}
		chosen, err := r.choose(spec)
		switch {
		case err != nil:
			if c.want == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v", c, err)
			}
		case chosen.record != c.want || chosen.profile.Name != profiles.NameAgent || len(chosen.notes) > 0:
			t.Errorf("%+v: %+v", c, chosen)
		}
	}
}

// Whose network a gateway may use is the profile's word, and the host's where the profile has none.
func TestChoose_DialFrom(t *testing.T) {
	for _, c := range []struct{ host, profile, want string }{
		{"", "", ""}, {"", "host", "host"}, {"host", "", "host"}, {"host", "container", "container"}, {"container", "host", "host"}, {"container", "", "container"},
	} {
		p, err := profiles.Builtin("build")
		if err != nil {
			t.Fatal(err)
		}
		p.Network.DialFrom = c.profile
		r := &Runtime{opts: Options{ConfigDir: configDir(t, &HostConfig{Network: HostNetwork{DialFrom: c.host}}), Profile: p}}
		// What is tightened on the way keeps the profile's word.
		chosen, err := r.choose(&specs.Spec{Annotations: map[string]string{"agentsafe.dev/memory": "1GiB"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := chosen.profile.Network.DialFrom; got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	r := &Runtime{opts: Options{ConfigDir: configDir(t, &HostConfig{Network: HostNetwork{DialFrom: "host"}})}}
	if chosen, err := r.choose(&specs.Spec{}); err != nil || chosen.profile.Network.DialFrom != "" {
		t.Errorf("a profile without a gateway: %+v, %v", chosen.profile.Network, err)
	}
}

// What may be allowed while a container runs is never more than what its handler grants and the host's list.
func TestCeiling(t *testing.T) {
	engine, err := profiles.Builtin(profiles.NameAgent)
	if err != nil {
		t.Fatal(err)
	}
	engine.Network.AllowPrivate = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:1::/32")}
	gateway := &profiles.Profile{Network: profiles.Network{
		Mode: profiles.NetworkGateway, Allow: []string{"*.example.com:443"}, Deny: []string{"bad.example.com:1-65535"}, RuleSets: []string{"pypi"},
	}}
	none := &profiles.Profile{Network: profiles.Network{Mode: profiles.NetworkNone}}
	for _, c := range []struct {
		name    string
		handler *profiles.Profile
		host    HostNetwork
		rules   map[string]bool
	}{
		{"engine", engine, HostNetwork{}, map[string]bool{
			"example.com": true, "tcp://example.com:25": true, "*:443": true, "10.96.1.0/24:443": true, "[fd00:1::/48]:443": true,
			"10.0.0.0/8:443": false, "169.254.169.254:80": false, "192.168.0.0/16:443": false,
		}},
		{"gateway", gateway, HostNetwork{}, map[string]bool{
			"a.example.com": true, "bad.example.com": false, "example.com": false, "a.example.com:80": false, "x.pypi.org": true, "10.0.0.0/8:443": false, "*:443": false,
		}},
		{"gateway and the host's list", gateway, HostNetwork{AllowWhileRunning: []string{"http://other.test", "10.1.0.0/16:443"}}, map[string]bool{
			"http://other.test": true, "other.test:443": false, "10.1.2.0/24:443": true, "10.2.0.0/16:443": false,
		}},
		{"none", none, HostNetwork{}, map[string]bool{"example.com": false}},
	} {
		ceiling := c.host.ceiling(c.handler)
		if ceiling == nil {
			t.Fatalf("%s: no bound", c.name)
		}
		p, err := egress.Compile(*ceiling)
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range c.rules {
			rule, err := egress.ParseRule(text)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Covers(rule); got != want {
				t.Errorf("%s: %s may be allowed: %v, want %v", c.name, text, got, want)
			}
		}
	}
	if (&HostNetwork{}).ceiling(&profiles.Profile{Unrestricted: true}) != nil {
		t.Error("the profile none has a bound")
	}
}

// A handler that only warns enforces nothing, unless the container asks for a policy itself; and it is never the default.
func TestChoose_Warn(t *testing.T) {
	agent, err := profiles.Builtin(profiles.NameAgent)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name        string
		opts        Options
		annotations map[string]string
		env         []string
		want        bool
	}{
		{"chosen by its name", Options{Profile: agent, Enforcement: EnforceWarn}, nil, nil, true},
		{"enforced", Options{Profile: agent}, nil, nil, false},
		{"nobody chose", Options{Enforcement: EnforceWarn}, nil, nil, false},
		{"asks for a limit", Options{Profile: agent, Enforcement: EnforceWarn}, map[string]string{"agentsafe.dev/memory": "1GiB"}, nil, false},
		{"asks by a variable", Options{Profile: agent, Enforcement: EnforceWarn}, nil, []string{"AGENTSAFE_NETWORK=none"}, false},
	} {
		c.opts.ConfigDir = configDir(t, nil)
		got, err := (&Runtime{opts: c.opts}).choose(&specs.Spec{Annotations: c.annotations, Process: &specs.Process{Env: c.env}})
		if err != nil || got.warn != c.want {
			t.Errorf("%s: %+v, %v, want %t", c.name, got, err, c.want)
		}
	}
	config := HostConfig{Default: "ci", Handlers: []Handler{{Name: "ci", Profile: "agent", Enforcement: EnforceWarn}}}
	if err := config.Check(t.TempDir()); err == nil || !strings.Contains(err.Error(), "never the default") {
		t.Errorf("a default that only warns: %v", err)
	}
	if config.enforcement("ci") != EnforceAll {
		t.Error("a default that only warns, by its name")
	}
	config.Default = ""
	if err := config.Check(t.TempDir()); err != nil || config.enforcement("ci") != EnforceWarn || config.enforcement("agent") != EnforceAll {
		t.Errorf("%v, %q", err, config.enforcement("ci"))
	}
	config.Handlers[0].Enforcement = "later"
	if err := config.Check(t.TempDir()); err == nil || !strings.Contains(err.Error(), "handlers.ci.enforcement") {
		t.Errorf("an unknown word: %v", err)
	}
}

func TestAppendWarnings(t *testing.T) {
	name := filepath.Join(t.TempDir(), "sub", "warnings.jsonl")
	notes := []profiles.Note{{Rule: "warn", Text: "would be refused: x"}, {Rule: "seccomp", Text: "as always", Routine: true}}
	for range 2 {
		if err := appendWarnings(name, "/run/x", "c1", "agent", notes); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(name)
	if err != nil || strings.Count(string(data), "\n") != 2 || !strings.Contains(string(data), `"id":"c1","root":"/run/x","profile":"agent","rule":"warn","text":"would be refused: x"`) {
		t.Errorf("%s, %v", data, err)
	}
	if err := os.Truncate(name, maxWarnLogBytes+1); err != nil {
		t.Fatal(err)
	}
	if err := appendWarnings(name, "/run/x", "c2", "agent", notes); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(name); err != nil || st.Size() > 1000 || st.Mode().Perm() != 0o600 {
		t.Errorf("the full file goes on: %v, %v", st, err)
	}
}

// A changed config.toml that was not applied must not be taken for one that holds.
func TestReadHostConfig_Stale(t *testing.T) {
	dir := configDir(t, nil)
	source := filepath.Join(dir, ConfigSource)
	if err := os.WriteFile(source, []byte("default = \"tight\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readHostConfig(dir); err == nil || !strings.Contains(err.Error(), "agentsafectl config apply") {
		t.Errorf("never applied: %v", err)
	}
	stamp, err := StampConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	writeJSON(t, filepath.Join(dir, ConfigCompiled), &HostConfig{Default: "tight", Source: stamp})
	if c, err := readHostConfig(dir); err != nil || c.Default != "tight" {
		t.Errorf("applied: %+v, %v", c, err)
	}
	if err := os.WriteFile(source, []byte("default = \"agent\" # longer\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readHostConfig(dir); err == nil {
		t.Error("changed since")
	}
	if err := os.Remove(source); err != nil {
		t.Fatal(err)
	}
	if _, err := readHostConfig(dir); err == nil {
		t.Error("removed since")
	}
}

func TestReadHostConfig_OthersWrite(t *testing.T) {
	dir := configDir(t, &HostConfig{Default: "none"})
	if err := os.Chmod(filepath.Join(dir, ConfigCompiled), 0o664); err != nil {
		t.Fatal(err)
	}
	if _, err := readHostConfig(dir); err == nil || !strings.Contains(err.Error(), "root alone") {
		t.Errorf("got %v", err)
	}
}

func TestHostConfig_Check(t *testing.T) {
	dir := configDir(t, nil)
	for _, c := range []struct {
		config HostConfig
		want   string
	}{
		{HostConfig{Default: "tight", Selectable: []string{"loose"}, Handlers: []Handler{{Name: "x", Profile: "none"}}, Landlock: "best-effort"}, ""},
		{HostConfig{Default: "nowhere"}, "default: "},
		{HostConfig{Selectable: []string{"nowhere"}}, "selectable: "},
		{HostConfig{Handlers: []Handler{{Name: "x", Profile: "nowhere"}}}, "handlers.x.profile: "},
		{HostConfig{Landlock: "off"}, "landlock: "},
	} {
		err := c.config.Check(dir)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c.config, err)
		}
	}
}

// BenchmarkChoose is what a host without a configuration pays for each create.
func BenchmarkChoose(b *testing.B) {
	r := &Runtime{opts: Options{ConfigDir: b.TempDir()}}
	spec := &specs.Spec{Process: &specs.Process{Env: []string{"PATH=/usr/bin", "HOME=/root"}}}
	for b.Loop() {
		if _, err := r.choose(spec); err != nil {
			b.Fatal(err)
		}
	}
}
