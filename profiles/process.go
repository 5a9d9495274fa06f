package profiles

import (
	"errors"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// PlanProcess returns a copy of a process that is within the profile: the first one of a container, or one that joins
// it. It is pure and leaves its input alone. The error is a [RefusedError] if the process asks for more.
func PlanProcess(in *specs.Process, p *Profile) (*specs.Process, []Note, error) {
	if in == nil {
		return nil, nil, errors.New("plan process: there is none")
	}
	out := *in
	if p.Unrestricted {
		return &out, nil, nil
	}
	var notes []Note
	var err error
	if out.Capabilities, notes, err = p.planCapabilities(in.Capabilities); err != nil {
		return nil, nil, err
	}
	if p.NoNewPrivs() && !out.NoNewPrivileges {
		out.NoNewPrivileges = true
		notes = append(notes, Note{Rule: "noNewPrivileges", Text: "turned on: set-id programs run without their rights", Routine: true})
		raiseForRoot(in, out.Capabilities)
	}
	env, more := p.planEnvironment(in.Env)
	out.Env, notes = env, append(notes, more...)
	if err := p.checkPriority(in); err != nil {
		return nil, nil, err
	}
	return &out, notes, nil
}

// raiseForRoot gives root what it is bounded by. Docker names no other set for an exec by root (-u 0) in a container of
// another user, since execve(2) makes them of the bounding one; under no_new_privs, which the profile has turned on and not
// the engine, it does not. c is within the profile already.
func raiseForRoot(in *specs.Process, c *specs.LinuxCapabilities) {
	if in.User.UID != 0 || c == nil || len(in.Capabilities.Effective) > 0 || len(in.Capabilities.Permitted) > 0 {
		return
	}
	c.Effective, c.Permitted = slices.Clone(c.Bounding), slices.Clone(c.Bounding)
}

// PlanExec is [PlanProcess] for a process that joins a container: what the spec's first process was judged for together
// with its mounts, the variables of this one are judged for alone.
func PlanExec(in *specs.Process, p *Profile) (*specs.Process, []Note, error) {
	out, notes, err := PlanProcess(in, p)
	if err != nil || p.Unrestricted || p.Trust.Secrets {
		return out, notes, err
	}
	var secrets []source
	for _, s := range p.secretsIn(out.Env) {
		if !slices.Contains(p.Trust.Waive, s.id) {
			secrets = append(secrets, s)
		}
	}
	if len(secrets) > 0 {
		return nil, nil, p.refuseSecrets(secrets)
	}
	return out, notes, nil
}

// checkPriority refuses to start a task in a class that starves the host's own work.
func (p *Profile) checkPriority(in *specs.Process) error {
	if slices.Contains(p.Capabilities, "CAP_SYS_NICE") {
		return nil
	}
	what := ""
	if s := in.Scheduler; s != nil {
		switch s.Policy {
		case specs.SchedFIFO, specs.SchedRR, specs.SchedDeadline:
			what = "process.scheduler.policy " + string(s.Policy)
		default:
		}
	}
	if io := in.IOPriority; io != nil && io.Class == specs.IOPRIO_CLASS_RT {
		what = "process.ioPriority.class " + string(io.Class)
	}
	if what == "" {
		return nil
	}
	return p.refuse(what, "real-time tasks starve the host's own", "capabilities: [..., CAP_SYS_NICE]")
}
