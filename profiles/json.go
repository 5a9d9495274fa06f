package profiles

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
)

// The encoders below write what encoding/json would make of the struct tags. A profile is part of every container's
// state, and encoding/json looks at all types that a type can reach before it writes the first byte: a third of a
// millisecond in every process that creates a container. A method that encodes stops it, at every struct where it is.

// MarshalJSON returns the profile as JSON; what is empty is left out. The error is always nil.
func (p *Profile) MarshalJSON() ([]byte, error) {
	return jsonObject(p.fields)
}

func (p *Profile) fields(j *jsonWriter) {
	j.text("name", p.Name)
	j.some("extends", p.Extends)
	j.some("description", p.Description)
	j.yes("unrestricted", p.Unrestricted)
	j.someTexts("capabilities", p.Capabilities)
	j.part("syscalls", p.Syscalls.fields)
	j.part("filesystem", p.Filesystem.fields)
	j.part("network", p.Network.fields)
	j.part("host", p.Host.fields)
	j.part("limits", p.Limits.fields)
	j.part("environment", p.Environment.fields)
	j.part("exec", p.Exec.fields)
	j.part("trust", p.Trust.fields)
	j.part("evidence", p.Evidence.fields)
	j.some("landlock", string(p.Landlock))
}

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (s Syscalls) MarshalJSON() ([]byte, error) { return jsonObject(s.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (f Filesystem) MarshalJSON() ([]byte, error) { return jsonObject(f.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (w Workspace) MarshalJSON() ([]byte, error) { return jsonObject(w.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (n Network) MarshalJSON() ([]byte, error) { return jsonObject(n.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (c Credential) MarshalJSON() ([]byte, error) { return jsonObject(c.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (h Host) MarshalJSON() ([]byte, error) { return jsonObject(h.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (l Limits) MarshalJSON() ([]byte, error) { return jsonObject(l.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (e Environment) MarshalJSON() ([]byte, error) { return jsonObject(e.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (e Exec) MarshalJSON() ([]byte, error) { return jsonObject(e.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (t Trust) MarshalJSON() ([]byte, error) { return jsonObject(t.fields) }

// MarshalJSON returns the part as JSON, see [Profile.MarshalJSON].
func (e Evidence) MarshalJSON() ([]byte, error) { return jsonObject(e.fields) }

func jsonObject(fields func(*jsonWriter)) ([]byte, error) {
	j := jsonWriter{buf: make([]byte, 0, 512)}
	j.object(func() { fields(&j) })
	return j.buf, nil
}

func (s Syscalls) fields(j *jsonWriter) {
	j.someTexts("packs", texts(s.Packs))
	j.someTexts("allow", s.Allow)
	j.someTexts("deny", s.Deny)
}

func (f Filesystem) fields(j *jsonWriter) {
	j.someTexts("read", f.Read)
	j.someTexts("execute", f.Execute)
	j.someTexts("write", f.Write)
	j.someTexts("hide", f.Hide)
	j.part("workspace", f.Workspace.fields)
}

func (w Workspace) fields(j *jsonWriter) {
	j.some("mode", string(w.Mode))
	j.some("promote", w.Promote)
	j.signed("quotaBytes", w.QuotaBytes)
	j.signed("memoryBytes", w.MemoryBytes)
	j.signed("copyBytes", w.CopyBytes)
	j.someTexts("paths", w.Paths)
	j.some("background", w.Background)
}

func (n Network) fields(j *jsonWriter) {
	j.some("mode", string(n.Mode))
	j.someTexts("allowPrivate", prefixes(n.AllowPrivate))
	j.someTexts("allow", n.Allow)
	j.someTexts("deny", n.Deny)
	j.someTexts("ruleSets", n.RuleSets)
	j.someTexts("addresses", prefixes(n.Addresses))
	j.some("dialFrom", n.DialFrom)
	if len(n.Credentials) > 0 {
		j.list("credentials", len(n.Credentials), func(i int) { n.Credentials[i].fields(j) })
	}
	if n.ConnectPorts != nil { // the empty list says something
		j.texts("connectPorts", portTexts(n.ConnectPorts))
	}
	if n.ListenPorts != nil {
		j.texts("listenPorts", portTexts(n.ListenPorts))
	}
}

func (c Credential) fields(j *jsonWriter) {
	j.text("name", c.Name)
	j.some("file", c.File)
	j.someTexts("command", c.Command)
	j.text("destination", c.Destination)
	j.text("present", c.Present)
	j.some("baseURLEnv", c.BaseURLEnv)
	j.some("placeholderEnv", c.PlaceholderEnv)
	j.some("basePath", c.BasePath)
	j.some("client", c.Client)
	j.yes("inspect", c.Inspect)
}

func (h Host) fields(j *jsonWriter) {
	j.someTexts("namespaces", texts(h.Namespaces))
	j.someTexts("mounts", h.Mounts)
	if len(h.Devices) > 0 {
		j.list("devices", len(h.Devices), func(i int) {
			d := &h.Devices[i]
			j.text("type", d.Type)
			j.key("major")
			j.raw(strconv.FormatInt(d.Major, 10))
			j.key("minor")
			j.raw(strconv.FormatInt(d.Minor, 10))
			j.text("access", d.Access)
		})
	}
	j.someTexts("sysctls", h.Sysctls)
}

func (l Limits) fields(j *jsonWriter) {
	j.signed("memoryBytes", l.MemoryBytes)
	j.signed("pids", l.PIDs)
	if l.CPUs != 0 {
		j.key("cpus")
		j.raw(strconv.FormatFloat(l.CPUs, 'g', -1, 64))
	}
	j.signed("wallClock", int64(l.WallClock))
	j.signed("cpuTime", int64(l.CPUTime))
	j.signed("outputBytes", l.OutputBytes)
	j.some("onOutput", l.OnOutput)
	j.signed("openFiles", l.OpenFiles)
	j.signed("egressBytes", l.EgressBytes)
	j.signed("ingressBytes", l.IngressBytes)
	j.signed("egressConnections", l.EgressConnections)
	j.signed("egressRequests", l.EgressRequests)
	j.signed("layerBytes", l.LayerBytes)
	j.signed("layerInodes", l.LayerInodes)
}

func (e Environment) fields(j *jsonWriter) {
	j.someTexts("allow", e.Allow)
	j.someTexts("deny", e.Deny)
	if len(e.Set) > 0 {
		j.key("set")
		j.object(func() {
			for _, name := range slices.Sorted(maps.Keys(e.Set)) {
				j.text(name, e.Set[name])
			}
		})
	}
}

func (e Exec) fields(j *jsonWriter) {
	j.some("transaction", e.Transaction)
	j.some("commit", e.Commit)
	j.signed("wallClock", int64(e.WallClock))
	j.someTexts("base", e.Base)
}

func (t Trust) fields(j *jsonWriter) {
	j.yes("untrustedInput", t.UntrustedInput)
	j.yes("secrets", t.Secrets)
	j.yes("externalWrite", t.ExternalWrite)
	j.someTexts("waive", t.Waive)
}

func (e Evidence) fields(j *jsonWriter) {
	j.some("mode", e.Mode)
	j.some("onFull", e.OnFull)
	j.some("denials", e.Denials)
}

func texts[T ~string](in []T) []string {
	out := make([]string, len(in))
	for i := range in {
		out[i] = string(in[i])
	}
	return out
}

func prefixes(in []netip.Prefix) []string {
	out := make([]string, len(in))
	for i := range in {
		out[i] = in[i].String()
	}
	return out
}
