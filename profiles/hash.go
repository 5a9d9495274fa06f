package profiles

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Hash returns the sha256, in hex, of canonical JSON of everything in the plan that decides what the kernel enforces:
// capabilities, no_new_privs, namespaces, mounts, paths, devices, limits, sysctls, Landlock, seccomp filters by their key, and
// the network policy. Command, environment and notes are not in it, so that runs under the same policy have the same
// hash.
func (plan *Plan) Hash() string {
	sum := sha256.Sum256(plan.canonical())
	return hex.EncodeToString(sum[:])
}

// canonical writes the JSON by hand: encoding/json spends a quarter of a millisecond on its first sight of the spec's
// types, in every process anew.
func (plan *Plan) canonical() []byte {
	j := jsonWriter{buf: make([]byte, 0, 8<<10)}
	l := plan.Spec.Linux
	j.object(func() {
		j.text("profile", plan.Profile)
		if p := plan.Spec.Process; p != nil {
			j.key("process")
			j.object(func() { j.process(p) })
		}
		j.list("mounts", len(plan.Spec.Mounts), func(i int) { j.mount(&plan.Spec.Mounts[i]) })
		j.list("namespaces", len(l.Namespaces), func(i int) {
			j.text("type", string(l.Namespaces[i].Type))
			j.text("path", l.Namespaces[i].Path)
		})
		j.texts("maskedPaths", l.MaskedPaths)
		j.texts("readonlyPaths", l.ReadonlyPaths)
		j.devices(l)
		j.limits(l.Resources)
		keys := make([]string, 0, len(l.Sysctl))
		for k := range l.Sysctl {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		j.list("sysctl", len(keys), func(i int) { j.text("key", keys[i]); j.text("value", l.Sysctl[keys[i]]) })
		j.key("landlock")
		j.landlock(plan.Landlock)
		j.list("seccomp", len(plan.Seccomp), func(i int) {
			j.text("key", plan.Seccomp[i].Key())
			j.number("flags", plan.Seccomp[i].Flags)
		})
		j.text("networkMode", string(plan.Network.Mode))
		j.list("networkAllowPrivate", len(plan.Network.AllowPrivate), func(i int) {
			j.text("prefix", plan.Network.AllowPrivate[i].String())
		})
		j.beside(plan)
	})
	return j.buf
}

func (j *jsonWriter) process(p *specs.Process) {
	j.boolean("noNewPrivileges", p.NoNewPrivileges)
	c := p.Capabilities
	if c == nil {
		c = &specs.LinuxCapabilities{}
	}
	j.texts("bounding", c.Bounding)
	j.texts("effective", c.Effective)
	j.texts("permitted", c.Permitted)
	j.texts("inheritable", c.Inheritable)
	j.texts("ambient", c.Ambient)
}

func (j *jsonWriter) mount(m *specs.Mount) {
	j.text("destination", m.Destination)
	j.text("type", m.Type)
	j.text("source", m.Source)
	j.texts("options", m.Options)
}

func (j *jsonWriter) devices(l *specs.Linux) {
	j.list("devices", len(l.Devices), func(i int) {
		d := &l.Devices[i]
		j.text("path", d.Path)
		j.text("device", Device{Type: d.Type, Major: d.Major, Minor: d.Minor, Access: "rw"}.String())
	})
	var rules []specs.LinuxDeviceCgroup
	if l.Resources != nil {
		rules = l.Resources.Devices
	}
	j.list("deviceRules", len(rules), func(i int) {
		j.boolean("allow", rules[i].Allow)
		d := Device{Type: rules[i].Type, Major: anyNumber, Minor: anyNumber, Access: rules[i].Access}
		if n := rules[i].Major; n != nil {
			d.Major = *n
		}
		if n := rules[i].Minor; n != nil {
			d.Minor = *n
		}
		j.text("device", d.String())
	})
}

func (j *jsonWriter) limits(r *specs.LinuxResources) {
	limit := func(k string, v *int64) {
		if v != nil {
			j.key(k)
			j.buf, j.more = strconv.AppendInt(j.buf, *v, 10), true
		}
	}
	if r == nil {
		return
	}
	if r.Memory != nil {
		limit("memoryBytes", r.Memory.Limit)
		limit("swapBytes", r.Memory.Swap)
	}
	if r.Pids != nil {
		limit("pids", r.Pids.Limit)
	}
	if r.CPU != nil {
		limit("cpuQuota", r.CPU.Quota)
		if r.CPU.Period != nil {
			j.number("cpuPeriod", *r.CPU.Period)
		}
	}
}

func (j *jsonWriter) landlock(l *LandlockPlan) {
	if l == nil {
		j.raw("null")
		return
	}
	j.object(func() {
		j.number("handledFS", l.HandledFS)
		j.number("handledNet", l.HandledNet)
		j.number("scoped", l.Scoped)
		j.list("rules", len(l.Rules), func(i int) {
			j.text("path", l.Rules[i].Path)
			j.number("access", l.Rules[i].Access)
		})
		j.list("netRules", len(l.NetRules), func(i int) {
			j.number("port", uint64(l.NetRules[i].Port))
			j.number("access", l.NetRules[i].Access)
		})
	})
}

// beside writes what is enforced beside the first process; the parts that say nothing are left out.
func (j *jsonWriter) beside(plan *Plan) {
	if w := &plan.Workspace; w.mode() != WorkspaceDirect {
		j.key("workspace")
		j.object(func() {
			j.text("mode", string(w.Mode))
			j.text("promote", w.Promote)
			j.signed("quotaBytes", w.QuotaBytes)
			j.signed("memoryBytes", w.MemoryBytes)
			j.signed("copyBytes", w.CopyBytes)
			j.texts("paths", w.Paths)
			j.text("background", w.Background)
		})
	}
	if plan.Gateway.Mode == NetworkGateway {
		j.key("gateway")
		j.object(func() { j.gateway(&plan.Gateway) })
	}
	l := &plan.Limits
	j.list("limits", 1, func(int) {
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
	})
	if e := &plan.Exec; !e.empty() {
		j.text("execTransaction", e.Transaction)
		j.text("execCommit", e.Commit)
		j.signed("execWallClock", int64(e.WallClock))
		j.someTexts("execBase", e.Base)
	}
	if e := &plan.Evidence; *e != (Evidence{}) {
		j.text("evidence", e.Mode)
		j.text("evidenceOnFull", e.OnFull)
		j.some("evidenceDenials", e.Denials)
	}
}

func (j *jsonWriter) gateway(n *Network) {
	j.texts("allow", n.Allow)
	j.texts("deny", n.Deny)
	j.texts("ruleSets", n.RuleSets)
	j.list("addresses", len(n.Addresses), func(i int) { j.text("prefix", n.Addresses[i].String()) })
	j.text("dialFrom", n.DialFrom)
	j.list("credentials", len(n.Credentials), func(i int) {
		c := &n.Credentials[i]
		j.text("name", c.Name)
		j.text("file", c.File)
		j.texts("command", c.Command)
		j.text("destination", c.Destination)
		j.text("present", c.Present)
		j.text("baseURLEnv", c.BaseURLEnv)
		j.text("placeholderEnv", c.PlaceholderEnv)
		j.text("basePath", c.BasePath)
		j.text("client", c.Client)
		j.yes("inspect", c.Inspect)
	})
}
