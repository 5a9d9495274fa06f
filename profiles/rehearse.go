package profiles

import (
	"maps"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Rehearsal is what a profile would do to a container that it does not hold: for hosts that are about to adopt it.
type Rehearsal struct {
	// Notes say what would be refused, and what would be tightened.
	Notes []Note
	// Log lets every call pass and has the kernel log those that the profile's filter would refuse. Calls that are judged
	// by the lower half of an argument (ioctl's TIOCSTI and the like) are not logged.
	Log SeccompFilter
}

// ruleWarn marks the notes of a rehearsal.
const ruleWarn = "warn"

// Rehearse compiles nothing and tells what [PlanContainer] would have refused: everything, and not only what it meets
// first. It is pure.
func Rehearse(spec *specs.Spec, p *Profile, host HostFacts) Rehearsal {
	out := Rehearsal{Log: logged(agentFilter(p, host.Arch))}
	for _, err := range p.refusals(spec, host) {
		out.Notes = append(out.Notes, Note{Rule: ruleWarn, Text: "would be " + err.Error()})
	}
	if len(out.Notes) > 0 {
		return out
	}
	plan, err := PlanContainer(spec, p, host)
	if err != nil {
		out.Notes = append(out.Notes, Note{Rule: ruleWarn, Text: "would fail: " + err.Error()})
		return out
	}
	for _, n := range plan.Notes {
		n.Text = "would be so: " + n.Text
		out.Notes = append(out.Notes, n)
	}
	return out
}

// RehearseExec is [Rehearse] for a process that joins a container.
func RehearseExec(in *specs.Process, p *Profile) []Note {
	_, notes, err := PlanExec(in, p)
	if err != nil {
		return []Note{{Rule: ruleWarn, Text: "would be " + err.Error()}}
	}
	for i := range notes {
		notes[i].Text = "would be so: " + notes[i].Text
	}
	return notes
}

// refusals asks each check about each thing alone.
func (p *Profile) refusals(spec *specs.Spec, host HostFacts) []error {
	var out []error
	add := func(err error) {
		if err != nil && !slices.ContainsFunc(out, func(o error) bool { return o.Error() == err.Error() }) {
			out = append(out, err)
		}
	}
	q := *p
	for i := range hostNamespaces() {
		others := slices.Delete(hostNamespaces(), i, i+1)
		q.Host.Namespaces = slices.Concat(p.Host.Namespaces, others)
		add(q.checkNamespaces(spec, host))
	}
	if spec.Process != nil {
		_, _, err := PlanProcess(spec.Process, p)
		add(err)
	}
	add(p.checkDevices(spec.Linux))
	for _, key := range slices.Sorted(maps.Keys(spec.Linux.Sysctl)) {
		linux := *spec.Linux
		linux.Sysctl = map[string]string{key: spec.Linux.Sysctl[key]}
		one := *spec
		one.Linux = &linux
		add(p.checkSysctls(&one, host))
	}
	add(p.checkRoot(spec, &host))
	for i := range spec.Mounts {
		if isBind(&spec.Mounts[i]) && i < len(host.Mounts) {
			add(p.checkBind(i, &spec.Mounts[i], host.Mounts[i], host.Paths))
		} else {
			add(p.checkFilesystem(i, &spec.Mounts[i], &host))
		}
	}
	_, err := p.checkTrust(spec, host)
	add(err)
	_, _, err = PlanLandlock(spec, p, host)
	add(err)
	return out
}

// logged turns a filter into one that logs where it refused.
func logged(f *SeccompFilter) SeccompFilter {
	out := *f
	log := SeccompAction{Do: DoLog}
	relent := func(a SeccompAction) SeccompAction {
		if a.Do == DoAllow {
			return a
		}
		return log
	}
	out.Name += " (log)"
	out.BadArch, out.Default, out.Unknown, out.Refuse = log, relent(f.Default), nil, nil
	out.Rules = slices.Clone(f.Rules)
	for i := range out.Rules {
		out.Rules[i].Action = relent(f.Rules[i].Action)
	}
	return out
}

// AddFilter adds a further filter, last, unless the first one would refuse to install it.
func (plan *Plan) AddFilter(f SeccompFilter) {
	if len(plan.Seccomp) > 0 && !plan.Seccomp[0].allows("seccomp") {
		plan.Seccomp = append([]SeccompFilter{f}, plan.Seccomp...)
		return
	}
	plan.Seccomp = append(plan.Seccomp, f)
}
