package main

import (
	"runtime"
	"strconv"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/record"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// explainRefusal says which rule of the profile refused what was traced. What no rule refuses, plain permissions do.
func explainRefusal(p *profiles.Profile, r *record.Refusal) denials.Denial {
	d := denials.Denial{Kind: denials.Syscall, What: r.Call, Answer: r.Errno}
	if r.Count > 1 {
		d.Count = r.Count
	}
	if use, port := portOf(r); use != "" {
		if a := profiles.ExplainPort(p, use, port); a.Verdict == profiles.VerdictRefused {
			d.Kind, d.What = denials.Network, use+" TCP port "+r.Port
			d.Rule, d.Why, d.Allow = a.Rule, a.Why, a.Allow
			return d
		}
	}
	switch {
	case r.Address != "":
		d.Kind, d.What = denials.Network, r.Address
		a := profiles.ExplainHost(p, r.Address)
		d.Rule, d.Why, d.Allow = a.Rule, a.Why, a.Allow
	case r.Path != "":
		d.Kind, d.What = denials.File, r.Access+" "+r.Path
		for _, a := range profiles.ExplainPath(p, r.Path) {
			if a.Verdict == profiles.VerdictHidden || a.Verdict == profiles.VerdictRefused && a.Rule == "filesystem."+r.Access {
				d.Rule, d.Why, d.Allow = a.Rule, "", a.Allow
			}
		}
		if d.Rule == "" && r.Errno == "EROFS" {
			d.Rule, d.Why = "mount", "it is mounted read-only (filesystem.workspace.mode, or whoever made the mount)"
		}
	default:
		if a := profiles.ExplainSyscall(p, r.Call, runtime.GOARCH); a.Verdict != profiles.VerdictAllowed {
			d.Rule, d.Why, d.Allow = a.Rule, a.Why, a.Allow
		}
	}
	if d.Rule == "" {
		d.Rule, d.Why = "permissions", "no rule of the profile: mode and owner of the file, or a capability that the task has not"
	}
	return d
}

// portOf says which port a refusal is about, and what the task wanted with it; "" for none.
func portOf(r *record.Refusal) (use string, port uint16) {
	v, err := strconv.ParseUint(r.Port, 10, 16)
	switch {
	case err != nil || r.Errno != "EACCES":
	case r.Call == "connect":
		use = profiles.PortConnect
	case r.Call == "bind":
		use = profiles.PortListen
	}
	return use, uint16(v) //nolint:gosec // 16 bits
}
