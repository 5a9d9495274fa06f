package profiles

import (
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// strict holds no secrets, and removes none either, so that all sources stay to be named.
func strict() *Profile {
	p := agent()
	p.Name, p.Network, p.Trust = "strict", Network{}, Trust{UntrustedInput: true}
	return p
}

func withSecrets(t *testing.T) (*specs.Spec, HostFacts) {
	t.Helper()
	s := loadSpec(t, "docker")
	s.Process.Env = append(s.Process.Env, "NPM_TOKEN=x", "EMPTY_TOKEN=", "AWS_SECRET_ACCESS_KEY=y", "TOKENS=3", "MAX_TOKEN_COUNT=5")
	host := hostOf(s)
	add := func(source, destination string, mode uint32) {
		s.Mounts = append(s.Mounts, specs.Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"rbind"}})
		host.Mounts = append(host.Mounts, MountFacts{Path: source, Mode: mode, Dev: 1, Ino: uint64(5000 + len(s.Mounts))})
	}
	add("/home/u/.aws", "/creds", unix.S_IFDIR)
	add("/var/lib/kubelet/pods/1/volumes/kubernetes.io~projected/kube-api-access-x", "/var/run/secrets/kubernetes.io/serviceaccount", unix.S_IFDIR)
	add("/tmp/ssh-XYZ/agent.12", "/agent", unix.S_IFSOCK)
	return s, host
}

// The error names every source, and what would let each pass.
func TestAttack_SecretsWithUntrustedInput(t *testing.T) {
	s, host := withSecrets(t)
	_, err := PlanContainer(s, strict(), host)
	all := []string{"env:NPM_TOKEN", "env:AWS_SECRET_ACCESS_KEY", "mount:/creds", "mount:/var/run/secrets/kubernetes.io/serviceaccount", "mount:/agent"}
	for _, want := range all {
		wantRefused(t, err, want, want)
	}
	for _, not := range []string{"EMPTY_TOKEN", "TOKENS", "MAX_TOKEN_COUNT"} {
		if strings.Contains(err.Error(), not) {
			t.Errorf("%s is no secret: %v", not, err)
		}
	}

	waived := strict()
	waived.Trust.Waive = all
	plan, err := PlanContainer(s, waived, host)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(plan.Notes, func(n Note) bool { return n.Rule == "trust" && strings.Contains(n.Text, "waived") }) {
		t.Errorf("no note on what was waived: %v", plan.Notes)
	}

	cleaned := strict()
	cleaned.Environment.Deny = secretVariables()
	cleaned.Filesystem.Hide = []string{"/creds", "/agent", "/var/run/secrets/kubernetes.io/serviceaccount"}
	if _, err := PlanContainer(s, cleaned, host); err != nil {
		t.Errorf("what is removed or hidden is not held: %v", err)
	}
}

func TestCheckTrust_AgentWarns(t *testing.T) {
	s, host := withSecrets(t)
	plan, err := PlanContainer(s, agent(), host)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(plan.Notes, func(n Note) bool { return n.Rule == "trust" })
	if i < 0 || plan.Notes[i].Routine || !strings.Contains(plan.Notes[i].Text, "mount:/creds") || !strings.Contains(plan.Notes[i].Text, "network.mode engine") {
		t.Errorf("%v", plan.Notes)
	}
}

// A process that joins is judged as well.
func TestAttack_SecretByExec(t *testing.T) {
	in := &specs.Process{Env: []string{"PATH=/bin", "GITHUB_TOKEN=x"}}
	if _, _, err := PlanExec(in, strict()); err == nil || !strings.Contains(err.Error(), "env:GITHUB_TOKEN") {
		t.Errorf("got %v", err)
	}
	if _, _, err := PlanExec(in, agent()); err != nil {
		t.Error(err)
	}
	out, notes, err := PlanExec(in, builtin(t, "lint"))
	if err != nil || !slices.Equal(out.Env, []string{"PATH=/bin"}) || len(notes) == 0 {
		t.Errorf("%v, %v, %v", out, notes, err)
	}
}

func TestValidateTrust(t *testing.T) {
	for _, c := range []struct {
		trust Trust
		mode  NetworkMode
		want  string
	}{
		{Trust{UntrustedInput: true, Secrets: true, ExternalWrite: true}, NetworkEngine, ""},
		{Trust{UntrustedInput: true, Secrets: true}, NetworkNone, "trust: untrustedInput together with secrets"},
		{Trust{UntrustedInput: true}, NetworkEngine, "trust.externalWrite: is false, but network.mode engine"},
		{Trust{UntrustedInput: true, ExternalWrite: true}, NetworkEngine, ""},
		{Trust{Secrets: true, ExternalWrite: true}, NetworkEngine, ""},
		{Trust{Waive: []string{"NPM_TOKEN"}}, NetworkNone, "trust.waive: \"NPM_TOKEN\""},
	} {
		p := agent()
		p.Trust, p.Network.Mode = c.trust, c.mode
		err := p.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c.trust, err)
		}
	}
}

func TestSecretAt(t *testing.T) {
	for p, want := range map[string]bool{
		"/home/u/.ssh": true, "/root/.docker/config.json": true, "/run/secrets/db": true, "/job/.env": true, "/job/.env.local": true,
		"/etc/x/server.key": true, "/home/u/ssh": false, "/job": false, "/job/environment": false, "/.ssh": true, "/": false, "/etc/hosts": false,
	} {
		if got := secretAt(p) != ""; got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
}

func TestPlanEnvironment(t *testing.T) {
	p := agent()
	p.Environment = Environment{Allow: []string{"PATH", "LC_*"}, Deny: []string{"LC_SECRET"}, Set: map[string]string{"CI": "1", "PATH": "/bin"}}
	got, notes := p.planEnvironment([]string{"PATH=/evil", "LC_ALL=C", "LC_SECRET=1", "LD_PRELOAD=/x", "CI=0", "LC_ALL=D", "ODD"})
	if want := []string{"LC_ALL=C", "LC_ALL=D", "CI=1", "PATH=/bin"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(notes) != 1 || notes[0].Text != "removed LC_SECRET LD_PRELOAD ODD" {
		t.Error(notes)
	}
	p.Environment = Environment{Allow: []string{noVariable}}
	if got, _ := p.planEnvironment([]string{"A=1"}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}
