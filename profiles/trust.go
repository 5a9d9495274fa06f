package profiles

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// The Rule of Two: who reads what nobody vouches for, holds secrets, and can write to the outside, can be talked into
// sending the secrets away. A profile says which of the three its tasks hold; here the actual spec is judged.

// source is one thing of a spec that makes a task hold one of the three.
type source struct {
	// id is what waive names: "env:NPM_TOKEN", "mount:/root/.aws".
	id, what string
}

func (s source) String() string { return s.id + " (" + s.what + ")" }

// warnsOnly reports whether the profile claims all three. Nothing is refused then: it is for tasks of which nobody said
// anything, and what they really hold is noted.
func (t *Trust) warnsOnly() bool { return t.UntrustedInput && t.Secrets && t.ExternalWrite }

func (p *Profile) validateTrust() error {
	t := &p.Trust
	if t.UntrustedInput && t.Secrets && !t.ExternalWrite {
		return errors.New("trust: untrustedInput together with secrets is what the Rule of Two refuses; " +
			"with externalWrite too nothing is refused, and what a task holds is noted")
	}
	if !t.warnsOnly() && !t.ExternalWrite && p.openEgress() != "" {
		return fmt.Errorf("trust.externalWrite: is false, but %s writes anywhere", p.openEgress())
	}
	for _, w := range t.Waive {
		kind, name, ok := strings.Cut(w, ":")
		if !ok || name == "" || kind != "env" && kind != "mount" {
			return fmt.Errorf("trust.waive: %q is neither env:NAME nor mount:PATH", w)
		}
	}
	return nil
}

// openEgress names what lets a task send to hosts that nobody listed; "" if nothing does.
func (p *Profile) openEgress() string {
	switch p.Network.Mode {
	case NetworkEngine, NetworkHost:
		return "network.mode " + string(p.Network.Mode)
	case NetworkGateway:
		for _, r := range p.Network.Allow {
			if strings.Contains(r, "*") && !strings.Contains(r, "*.") {
				return "network.allow " + r
			}
		}
	case NetworkNone:
	}
	return ""
}

// checkTrust judges the hardened spec: what was removed or hidden is not held. The error names every source.
func (p *Profile) checkTrust(s *specs.Spec, host HostFacts) ([]Note, error) {
	secrets, waived := p.secretSources(s, host)
	var notes []Note
	if len(waived) > 0 {
		notes = append(notes, Note{Rule: "trust", Text: "waived by the profile: " + joinSources(waived)})
	}
	if len(secrets) == 0 {
		return notes, nil
	}
	if p.Trust.warnsOnly() {
		return append(notes, Note{Rule: "trust", Text: "the task reads what nobody vouches for and holds secrets: " +
			joinSources(secrets) + p.sendsTo()}), nil
	}
	if p.Trust.Secrets {
		return notes, nil
	}
	return nil, p.refuseSecrets(secrets)
}

// sendsTo completes a sentence on secrets.
func (p *Profile) sendsTo() string {
	if open := p.openEgress(); open != "" {
		return "; it can send them away (" + open + ")"
	}
	return ""
}

func (p *Profile) refuseSecrets(secrets []source) error {
	ids := make([]string, len(secrets))
	for i := range secrets {
		ids[i] = secrets[i].id
	}
	return &RefusedError{
		What: "secrets in a task that must hold none: " + joinSources(secrets),
		Rule: fmt.Sprintf("profile %q: trust.secrets is false (untrusted input together with secrets breaks the Rule of Two)", p.Name),
		Allow: "leaving them out, handing them over as network.credentials so that one destination alone gets them, or a profile with " +
			"`trust: {waive: [" + strings.Join(ids, ", ") + "]}`",
	}
}

// secretSources finds the secrets of a spec, and those among them that the profile waives.
func (p *Profile) secretSources(s *specs.Spec, host HostFacts) (found, waived []source) {
	var all []source
	if s.Process != nil {
		all = p.secretsIn(s.Process.Env)
	}
	for i := range s.Mounts {
		m := &s.Mounts[i]
		destination := path.Clean("/" + m.Destination)
		if !isBind(m) && m.Type != typeOverlay || slices.Contains(s.Linux.MaskedPaths, destination) {
			continue
		}
		what := secretAt(destination)
		if what == "" && i < len(host.Mounts) {
			what = secretAt(host.Mounts[i].Path)
		}
		if what != "" {
			all = append(all, source{"mount:" + destination, what})
		}
	}
	for _, src := range all {
		if slices.Contains(p.Trust.Waive, src.id) {
			waived = append(waived, src)
		} else {
			found = append(found, src)
		}
	}
	return found, waived
}

// secretsIn finds the secrets among variables. An empty value is none.
func (p *Profile) secretsIn(env []string) []source {
	var out []source
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		if _, ours := p.Environment.Set[name]; value == "" || ours {
			continue
		}
		if matchAny(secretVariables(), name) {
			out = append(out, source{"env:" + name, "by its name"})
		}
	}
	return out
}

func joinSources(list []source) string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].String()
	}
	return strings.Join(out, ", ")
}
