package container

import (
	"context"

	"github.com/agentsafe/agentsafe/runtime/rdt"
)

// acquireRDT puts together the class of service that linux.intelRdt asks for.
func (cr *creation) acquireRDT(context.Context) error {
	if cr.spec.Linux.IntelRdt == nil {
		return nil
	}
	config, err := rdt.Plan(cr.spec.Linux.IntelRdt, cr.o.ID)
	if err != nil {
		return err
	}
	root, err := rdt.Find()
	if err != nil {
		return invalid("linux.intelRdt", err.Error())
	}
	group := config.Group(root)
	cr.c.state.RDT = group
	// Before the class exists: a crash from here on leaves a state that tells what to remove.
	if err := writeState(cr.c.dir, cr.c.state); err != nil {
		return err
	}
	cr.undo.push(func() {
		if err := group.Remove(); err != nil {
			cr.rt.opts.Warn(err.Error())
		}
	})
	return config.Apply(group)
}

// joinRDT moves a process that is being set up into the container's class, if it has one.
func (c *Container) joinRDT(pid int) error {
	if c.state.RDT == nil {
		return nil
	}
	return c.state.RDT.Add(pid)
}
