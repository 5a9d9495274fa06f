package profiles

import (
	"math/rand"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/quick"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// some returns a few of the words.
func some[T any](r *rand.Rand, words ...T) []T {
	var out []T
	for _, w := range words {
		if r.Intn(3) == 0 {
			out = append(out, w)
		}
	}
	return out
}

func one[T any](r *rand.Rand, words ...T) T { return words[r.Intn(len(words))] }

// randomProfile makes a profile that Validate has nothing against but what is not enforced yet.
func randomProfile(r *rand.Rand) *Profile {
	tree := []string{"/", "/usr", "/usr/lib", "/usr/lib/x", "/usrx", "/tmp", "$HOME", "~/.cache", "$HOME/.cache/a", "$WORKSPACE"}
	p := &Profile{
		Name:         one(r, "a", "b", "c"),
		Unrestricted: r.Intn(20) == 0,
		Capabilities: some(r, "CAP_CHOWN", "CAP_KILL", "CAP_SETUID"),
		Syscalls:     Syscalls{Packs: some(r, packs()...), Allow: some(r, "bpf", "mbind"), Deny: some(r, "bpf", "personality")},
		Filesystem:   Filesystem{Read: some(r, tree...), Execute: some(r, tree...), Write: some(r, tree...), Hide: some(r, "/a", "**/.env")},
		Host: Host{
			Namespaces: some(r, specs.PIDNamespace, specs.IPCNamespace), Mounts: some(r, "/run", "/run/x", "/srv"), Sysctls: some(r, "a", "b"),
			Devices: some(r, Device{"c", 10, 229, "rw"}, Device{"c", 10, anyNumber, "r"}, Device{"c", anyNumber, anyNumber, "w"}, Device{"b", 8, 0, "rwm"}),
		},
		Environment: Environment{
			Allow: some(r, "A", "AB*", "ABC", "B", "*"), Deny: some(r, "A", "*_TOKEN"),
			Set: one(r, nil, map[string]string{"X": "1"}, map[string]string{"X": "2", "Y": ""}),
		},
		Limits: Limits{
			MemoryBytes: one(r, int64(0), 5, 7), PIDs: one(r, int64(0), 5, 7), CPUs: one(r, 0, 0.5, 2), WallClock: one(r, Duration(0), 3, 4),
			CPUTime: one(r, Duration(0), 3), OutputBytes: one(r, int64(0), 3), OpenFiles: one(r, int64(0), 3), EgressBytes: one(r, int64(0), 9), IngressBytes: one(r, int64(0), 7), EgressConnections: one(r, int64(0), 5), EgressRequests: one(r, int64(0), 6),
			LayerBytes: one(r, int64(0), 9), LayerInodes: one(r, int64(0), 9),
		},
		Trust:    Trust{UntrustedInput: r.Intn(2) == 0, Secrets: r.Intn(2) == 0, ExternalWrite: r.Intn(2) == 0, Waive: some(r, "env:A", "env:B")},
		Landlock: one(r, "", LandlockRequired, LandlockBestEffort, LandlockOff),
	}
	if p.Limits.OutputBytes > 0 {
		p.Limits.OnOutput = one(r, "", OutputStop, OutputDiscard)
	}
	p.Filesystem.Workspace.Mode = one(r, "", WorkspaceDirect, WorkspaceOverlay, WorkspaceReadonly)
	if p.Filesystem.Workspace.mode() != WorkspaceDirect {
		w := &p.Filesystem.Workspace
		w.Promote, w.Background, w.Paths = one(r, "", "manual"), one(r, "", "kill", "keep"), some(r, "/w", "/v")
		w.QuotaBytes, w.CopyBytes, w.MemoryBytes = one(r, int64(0), 5), one(r, int64(0), 3, 7), one(r, int64(0), 4, 9)
	}
	if p.Exec.Transaction = one(r, "", "auto"); p.Exec.Transaction != "" {
		p.Exec.Commit = one(r, "", "always", "success", "never")
		p.Exec.Base = some(r, "probe", "cat /tmp/healthy")
	}
	p.Exec.WallClock = one(r, Duration(0), 3)
	if p.Evidence.Mode = one(r, "", "on"); p.Evidence.Mode != "" {
		p.Evidence.OnFull = one(r, "", "stop", "gap")
	}
	p.Evidence.Denials = one(r, "", DenialsKernel)
	private := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("169.254.169.254/32")}
	n := &p.Network
	switch n.Mode = one(r, "", NetworkNone, NetworkGateway, NetworkEngine, NetworkHost); n.Mode {
	case NetworkEngine:
		n.AllowPrivate = some(r, private...)
	case NetworkGateway:
		n.Allow = some(r, "*:443", "*.pypi.org:443", "files.pypi.org:443", "a.files.pypi.org", "*.pypi.org", "ssh://github.com", "github.com:1-65535", "https://github.com:443-450,22", "tcp://*.org:22,443", "10.0.0.0/8:443", "10.1.0.0/16:443", "GET http://x.org/a/", "GET,PUT https://files.pypi.org/x", "https://*.pypi.org/x/y")
		n.RuleSets, n.Deny, n.Addresses = some(r, "pypi", "go"), some(r, "upload.pypi.org", "*.pypi.org:443-444"), some(r, private...)
		n.DialFrom = one(r, "", "container", "host")
		n.Credentials = some(r, Credential{Name: "a", File: "/k", Destination: "d:443", Present: "bearer"}, Credential{Name: "b", File: "/k", Destination: "d:443", Present: "bearer"},
			Credential{Name: "b", File: "/k", Destination: "d:443", Present: "bearer", BasePath: "/v1"}, Credential{Name: "b", File: "/k", Destination: "d:443", Present: "bearer", Client: "git"},
			Credential{Name: "b", File: "/k", Destination: "d:443", Present: "bearer", PlaceholderEnv: "B", Inspect: true})
	case NetworkNone, NetworkHost:
	}
	ports := func() []PortRange {
		return one(r, nil, nil, []PortRange{}, []PortRange{{443, 443}}, []PortRange{{80, 90}, {443, 443}}, []PortRange{{85, 95}}, []PortRange{{91, 100}, {80, 90}}, []PortRange{{0, 65535}})
	}
	n.ConnectPorts, n.ListenPorts = ports(), ports()
	return p
}

// Generate is for testing/quick.
func (*Profile) Generate(r *rand.Rand, _ int) reflect.Value { return reflect.ValueOf(randomProfile(r)) }

func anonymous(p *Profile) *Profile {
	out := clone(p)
	out.Name, out.Extends, out.Description = "", "", ""
	return out
}

func TestMeet_Laws(t *testing.T) {
	same := func(a, b *Profile) bool { return reflect.DeepEqual(anonymous(a), anonymous(b)) }
	for name, law := range map[string]any{
		"commutative": func(a, b *Profile) bool {
			return same(Meet(a, b), Meet(b, a)) && Meet(a, b).Name == Meet(b, a).Name || a.Name != b.Name && equal(a, b)
		},
		"associative": func(a, b, c *Profile) bool { return same(Meet(Meet(a, b), c), Meet(a, Meet(b, c))) },
		"idempotent": func(a *Profile) bool {
			return equal(Meet(a, a), a) && same(Meet(Meet(a, a), a), Meet(a, a)) && Meet(a, a).Name == a.Name
		},
		"below both": func(a, b *Profile) bool { return LessOrEqual(Meet(a, b), a) && LessOrEqual(Meet(a, b), b) },
		"the largest below both": func(a, b, c *Profile) bool {
			below := Meet(Meet(a, b), c) // something that is below both
			return LessOrEqual(below, Meet(a, b)) && (!LessOrEqual(c, a) || !LessOrEqual(c, b) || LessOrEqual(c, Meet(a, b)))
		},
		"what is below is its own meet": func(a, b *Profile) bool { return LessOrEqual(a, b) == equal(Meet(a, b), a) },
		"transitive":                    func(a, b, c *Profile) bool { return !LessOrEqual(a, b) || !LessOrEqual(b, c) || LessOrEqual(a, c) },
		"reflexive":                     func(a *Profile) bool { return LessOrEqual(a, a) },
		"the input stays": func(seed int64) bool {
			a, b := randomProfile(rand.New(rand.NewSource(seed))), randomProfile(rand.New(rand.NewSource(seed+1)))
			Meet(a, b)
			return reflect.DeepEqual(a, randomProfile(rand.New(rand.NewSource(seed)))) && reflect.DeepEqual(b, randomProfile(rand.New(rand.NewSource(seed+1))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := quick.Check(law, &quick.Config{MaxCount: 400}); err != nil {
				t.Error(err)
			}
		})
	}
}

func equal(a, b *Profile) bool { return LessOrEqual(a, b) && LessOrEqual(b, a) }

// Random profiles are seldom comparable. Here each dimension is changed alone, so that both answers occur in each.
func TestLessOrEqual_EachDimension(t *testing.T) {
	seen := map[string][2]int{}
	r := rand.New(rand.NewSource(1))
	for range 2000 {
		a, b := randomProfile(r), randomProfile(r)
		a.Unrestricted, b.Unrestricted = false, false
		for _, d := range dimensions() {
			count := seen[d.name]
			var out Profile
			d.meet(a, b, &out)
			if d.within(a, b) {
				count[0]++
			} else {
				count[1]++
			}
			seen[d.name] = count
		}
	}
	for name, count := range seen {
		if count[0] == 0 || count[1] == 0 {
			t.Errorf("%s: %d times within, %d times not", name, count[0], count[1])
		}
	}
	if len(seen) != len(dimensions()) {
		t.Error("two dimensions have one name")
	}
}

// Every field of a profile belongs to a dimension: a change of the field alone makes two profiles differ in the order.
func TestLessOrEqual_EveryField(t *testing.T) {
	var full Profile
	fill(t, reflect.ValueOf(&full).Elem(), new(int64))
	free := []string{"Name", "Extends", "Description", "Environment.Set", "Filesystem.Workspace.Promote", "Network.DialFrom"}
	var visit func(path string, v reflect.Value, base func() (*Profile, reflect.Value))
	visit = func(path string, v reflect.Value, base func() (*Profile, reflect.Value)) {
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				name := v.Type().Field(i).Name
				if path != "" {
					name = path + "." + name
				}
				visit(name, v.Field(i), func() (*Profile, reflect.Value) {
					p, parent := base()
					return p, parent.Field(i)
				})
			}
			return
		}
		if slices.Contains(free, path) {
			return
		}
		// A context in which all fields mean something.
		a, _ := base()
		b, field := base()
		field.Set(v)
		switch path {
		case "Filesystem.Workspace.Mode":
			field.SetString(string(WorkspaceReadonly))
		case "Filesystem.Workspace.Background":
			field.SetString("keep")
		case "Network.Mode":
			field.SetString(string(NetworkHost))
		case "Network.AllowPrivate":
			a.Network.Mode, b.Network.Mode = NetworkEngine, NetworkEngine
		case "Exec.Transaction":
			field.SetString("")
		case "Exec.Commit":
			field.SetString("never")
		case "Evidence.Mode":
			field.SetString("")
		case "Network.Allow", "Network.Deny":
			field.Set(reflect.ValueOf([]string{"a.test"}))
		case "Network.RuleSets":
			field.Set(reflect.ValueOf([]string{"pypi"}))
		case "Evidence.Denials":
			field.SetString(DenialsKernel)
		case "Evidence.OnFull":
			field.SetString("gap")
		case "Limits.OnOutput":
			a.Limits.OutputBytes, b.Limits.OutputBytes = 1, 1
			field.SetString(OutputDiscard)
		case "Landlock":
			field.SetString(string(LandlockOff))
		}
		if equal(a, b) {
			t.Errorf("%s: a change of it does not change the order", path)
		}
	}
	visit("", reflect.ValueOf(full), func() (*Profile, reflect.Value) {
		p := &Profile{Name: "x", Network: Network{Mode: NetworkGateway}}
		p.Filesystem.Workspace = Workspace{Mode: WorkspaceOverlay, Paths: []string{"/w"}}
		p.Exec.Transaction, p.Evidence.Mode = "auto", "on"
		return p, reflect.ValueOf(p).Elem()
	})
}

// A range does not open the metadata service, so it is not above the profile that names it.
func TestLessOrEqual_MetadataAddress(t *testing.T) {
	profile := func(address string) *Profile {
		return &Profile{Network: Network{Mode: NetworkGateway, Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}}
	}
	if LessOrEqual(profile("169.254.169.254/32"), profile("169.254.0.0/16")) {
		t.Error("the metadata service passes for a part of a range that does not open it")
	}
	if !LessOrEqual(profile("10.0.0.1/32"), profile("10.0.0.0/8")) || !LessOrEqual(profile("169.254.169.254/32"), &Profile{Network: Network{Mode: NetworkHost}}) {
		t.Error("a part of a range is not below it")
	}
}

// Rules are compared by what they match, not by their text.
func TestLessOrEqual_EgressRules(t *testing.T) {
	profile := func(sets string, rules ...string) *Profile {
		return &Profile{Network: Network{Mode: NetworkGateway, Allow: rules, RuleSets: strings.Fields(sets)}}
	}
	for _, c := range []struct {
		a, b *Profile
		want bool
	}{
		{profile("", "example.com"), profile("", "example.com:443"), true},
		{profile("", "https://example.com"), profile("", "*.com:80,443"), true},
		{profile("", "ssh://example.com"), profile("", "example.com:22"), false},
		{profile("", "files.pythonhosted.org"), profile("pypi"), true},
		{profile("pypi"), profile("", "*:443"), true},
		{profile("pypi"), profile("npm pypi"), true},
		{profile("pypi npm"), profile("npm"), false},
		{profile("", "a.test:80-90"), profile("", "a.test:80-85,86-99"), true},
	} {
		if got := LessOrEqual(c.a, c.b); got != c.want {
			t.Errorf("%v below %v: %v", c.a.Network, c.b.Network, got)
		}
	}
	if m := Meet(profile("npm pypi", "a.test:80,443"), profile("pypi", "*.test:443")); !slices.Equal(m.Network.RuleSets, []string{"pypi"}) || !slices.Equal(m.Network.Allow, []string{"a.test:443"}) {
		t.Errorf("meet: %+v", m.Network)
	}
}

func TestExcess(t *testing.T) {
	a, b := agent(), agent()
	if got := Excess(a, b); got != nil {
		t.Error(got)
	}
	b.Filesystem.Write = []string{"/tmp"}
	b.Limits.PIDs = 10
	if got, want := Excess(a, b), []string{"filesystem.write", "limits.pids"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Excess(b, a); got != nil {
		t.Error(got)
	}
	if none := builtin(t, NameNone); !LessOrEqual(a, none) || LessOrEqual(none, a) {
		t.Error("none is not above agent")
	}
}
