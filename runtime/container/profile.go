package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/profiles"
)

// ProfileDir is where `agentsafectl profile install` puts the profiles that an administrator has written. They are
// JSON there: the runtime is started for every operation of a container, and a YAML parser would cost each start more
// than the profile.
const ProfileDir = ConfigDir + "/" + profilesName

const profilesName = "profiles.d"

const maxProfileBytes = 1 << 20

// LoadProfile returns a built-in profile or one that is installed; "" is the host's default, and a name may be one that
// the host's configuration gives a profile to. A file that others than root could have written is refused: it decides
// what a container may do.
func LoadProfile(name string) (*profiles.Profile, error) {
	c, err := readHostConfig(ConfigDir)
	if err != nil {
		return nil, err
	}
	return loadProfile(ConfigDir, c.handler(name))
}

// LoadHandler is [LoadProfile] for an engine's runtime, whose profile may only warn; see [EnforceWarn].
func LoadHandler(name string) (*profiles.Profile, Enforcement, error) {
	c, err := readHostConfig(ConfigDir)
	if err != nil {
		return nil, EnforceAll, err
	}
	p, err := loadProfile(ConfigDir, c.handler(name))
	return p, c.enforcement(name), err
}

func loadProfile(configDir, name string) (*profiles.Profile, error) {
	if name == "" {
		name = profiles.DefaultName
	}
	if p, err := profiles.Builtin(name); err == nil {
		if name != profiles.NameAgent {
			err = p.Validate()
		}
		if err != nil {
			return nil, fmt.Errorf("profile %q: %w", name, err)
		}
		return p, nil
	}
	if name[0] == '.' || strings.ContainsAny(name, "/\x00") {
		return nil, fmt.Errorf("profile %q: not a name", name)
	}
	dir := filepath.Join(configDir, profilesName)
	p, err := readProfile(filepath.Join(dir, name+".json"))
	if errors.Is(err, os.ErrNotExist) {
		_, unknown := profiles.Builtin(name)
		return nil, fmt.Errorf("%w, nor installed in %s (agentsafectl profile install)", unknown, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("profile %q: %w", name, err)
	}
	if p.Name != name {
		return nil, fmt.Errorf("profile %q: the file calls itself %q", name, p.Name)
	}
	return p, nil
}

func readProfile(path string) (*profiles.Profile, error) {
	data, err := readTrusted(path)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var p profiles.Profile
	if err := dec.Decode(&p); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &p, p.Validate()
}

// choice is the profile that a container gets.
type choice struct {
	// profile is in force; handler is the one before what the spec asks for.
	profile, handler *profiles.Profile
	config           *HostConfig
	notes            []profiles.Note
	// record is the name of a recording, "" for none.
	record string
	// warn says that the profile is not enforced: the caller of the runtime chose it by a handler that only warns, and the
	// container asks for nothing itself. Who asks for a policy gets it.
	warn bool
}

// choose resolves the profile of a container: the one that the caller of the runtime named or the host's default, and
// within that what annotations and variables of the spec ask for. Beside an error about these there is what was in force
// before.
func (r *Runtime) choose(spec *specs.Spec) (*choice, error) {
	config, err := readHostConfig(r.opts.ConfigDir)
	if err != nil {
		return nil, err
	}
	p := r.opts.Profile
	if p == nil {
		if p, err = loadProfile(r.opts.ConfigDir, config.handler("")); err != nil {
			return nil, err
		}
	}
	requests := profileRequests(spec)
	record, err := config.recording(r.opts.Handler, takeRecord(&requests), r.opts.ConfigDir)
	if err != nil {
		return nil, err
	}
	out := &choice{profile: p, handler: p, config: config, record: record, warn: r.opts.Profile != nil && r.opts.Enforcement == EnforceWarn && len(requests) == 0}
	for _, ask := range requests {
		var more []profiles.Note
		if ask.Key == profileKey {
			p, more, err = r.selectProfile(p, config, ask)
		} else {
			p, more, err = profiles.Tighten(p, []profiles.Request{ask})
		}
		if err != nil {
			return out, err
		}
		out.profile = p
		out.notes = append(out.notes, more...)
	}
	out.profile = config.Network.complete(p)
	return out, nil
}

// takeRecord takes the wish for a recording out of the others, which tighten; nil if there is none. Only an annotation
// asks for one: a variable can be the image's, and whoever reads a recording believes that it is of what was meant.
func takeRecord(requests *[]profiles.Request) *profiles.Request {
	i := slices.IndexFunc(*requests, func(ask profiles.Request) bool { return ask.Key == recordKey })
	if i < 0 {
		return nil
	}
	ask := (*requests)[i]
	*requests = slices.Delete(*requests, i, i+1)
	return &ask
}

const profileKey = "profile"

// selectProfile takes a profile that the spec names: one that grants no more than the present one or, by annotation
// only, one that the administrator has released for that. A variable can be the image's, which never loosens.
func (r *Runtime) selectProfile(p *profiles.Profile, config *HostConfig, ask profiles.Request) (*profiles.Profile, []profiles.Note, error) {
	if ask.Value == p.Name {
		return p, nil, nil
	}
	named, err := loadProfile(r.opts.ConfigDir, ask.Value)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", ask.Source, err)
	}
	annotation := strings.HasPrefix(ask.Source, fromAnnotation)
	more := profiles.Excess(named, p)
	if len(more) == 0 || annotation && slices.Contains(config.Selectable, ask.Value) {
		return named, []profiles.Note{{Rule: "profile", Text: ask.Source + "=" + ask.Value, Routine: true}}, nil
	}
	allow := "the annotation " + profiles.ProfileAnnotation + ", if the administrator has made the profile selectable"
	if annotation {
		allow = fmt.Sprintf("`selectable = [%q]` in %s", ask.Value, filepath.Join(r.opts.ConfigDir, ConfigSource))
	}
	return nil, nil, &profiles.RefusedError{
		What: ask.Source + "=" + ask.Value, Allow: allow,
		Rule: fmt.Sprintf("it grants more than the profile %q that is in force: %s", p.Name, strings.Join(more, ", ")),
	}
}

const fromAnnotation, fromVariable = "annotation ", "variable "

// profileRequests collects what a spec asks for: annotations before variables, a profile's name before the rest, so that
// the answer does not depend on the order of a map. Of variables only those count that are known: a task may have some of
// its own that begin like ours.
func profileRequests(spec *specs.Spec) []profiles.Request {
	var out []profiles.Request
	for key, value := range spec.Annotations {
		if name, ok := strings.CutPrefix(key, profiles.AnnotationPrefix); ok {
			out = append(out, profiles.Request{Key: name, Value: value, Source: fromAnnotation + key})
		}
	}
	if spec.Process != nil {
		for _, e := range spec.Process.Env {
			rest, ok := strings.CutPrefix(e, "AGENTSAFE_")
			if !ok {
				continue
			}
			name, value, _ := strings.Cut(rest, "=")
			key := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
			if key == profileKey || slices.Contains(profiles.RequestKeys(), key) {
				out = append(out, profiles.Request{Key: key, Value: value, Source: fromVariable + "AGENTSAFE_" + name})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b profiles.Request) int {
		if (a.Key == profileKey) != (b.Key == profileKey) {
			if a.Key == profileKey {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Source, b.Source)
	})
	return out
}
