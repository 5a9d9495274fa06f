package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/task"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/rootless"
)

// defaultPaths are the host's for root, and the user's own for everybody else.
func defaultPaths() *paths {
	p := &paths{state: "/run/agentsafe", runs: "/run/agentsafectl", data: "/var/lib/agentsafe"}
	if !rootless.ForUser() {
		return p
	}
	*p = paths{}
	state, err := rootless.StateDir()
	if err == nil {
		p.state, p.runs = state, state+"ctl"
	}
	var derr error
	if p.data, derr = rootless.DataDir(); derr != nil {
		p.data = ""
	}
	p.err = errors.Join(err, derr)
	return p
}

// check refuses to go on without directories.
func (p *paths) check() error {
	if p.state == "" || p.runs == "" || p.data == "" {
		return p.err
	}
	return nil
}

// asRoot makes an ordinary user's process root of a user namespace: of the one in which the container id was set up, or
// of a new one if there is no such container. For root it does nothing.
func (p *paths) asRoot(id string) error {
	if err := p.check(); err != nil || os.Geteuid() == 0 {
		return err
	}
	var above *os.File
	if id != "" {
		rt, err := container.Open(container.Options{Root: p.state})
		if err != nil {
			return err
		}
		defer rt.Close()
		if above, err = rt.UserNamespaceAbove(id); err != nil {
			return err
		}
	}
	return rootless.Enter(above, exitOwn)
}

// asUser plans what is different for an ordinary user: who the task runs as, and what can't be limited.
func (o *operation) asUser() error {
	if !o.rootless {
		return nil
	}
	var err error
	if o.ids.UID, err = rootless.ReadMap("uid_map"); err != nil {
		return err
	}
	if o.ids.GID, err = rootless.ReadMap("gid_map"); err != nil {
		return err
	}
	host, err := cgroup.ReadHost()
	if err == nil {
		host.AskWritable()
	}
	var missing []string
	for _, c := range []string{"memory", "cpu", "pids"} {
		if !host.Delegates(c) {
			missing = append(missing, c)
		}
	}
	if o.request.PIDsMax == defaultPIDs && slices.Contains(missing, "pids") && !o.ownID() && o.ids.UID.Size() > 1 {
		o.request.PIDsMax = 0 // the default is no demand: RLIMIT_NPROC counts each uid alone
	}
	if len(missing) > 0 {
		text := "no cgroup is delegated to this user for " + strings.Join(missing, ", ") +
			": the task's use of these has no limit but --timeout"
		if o.ownID() && missing[len(missing)-1] == "pids" {
			text = strings.TrimSuffix(text, " but --timeout") + " but --timeout, and RLIMIT_NPROC for processes"
		}
		o.note(text)
	}
	if why := rootless.OneID(); why != "" && rootless.SetgroupsDenied() {
		o.note("one id is mapped, and the task stays in this user's groups: " + why)
	}
	return nil
}

// ownID reports whether the container has the user's own id and no other.
func (o *operation) ownID() bool { return o.flags.image == "" && o.flags.rootfs == "" }

// hostUser is the user that the task runs as on this host's programs, for an ordinary user: nobody but itself.
func (o *operation) hostUser(passwd []byte) (task.User, error) {
	uid, _ := o.ids.UID.Outside(0)
	gid, _ := o.ids.GID.Outside(0)
	if o.flags.user != "" {
		asked, err := task.UserByID(o.flags.user, passwd)
		if err != nil {
			return task.User{}, fmt.Errorf("--user: %w", err)
		}
		if int(asked.UID) != uid {
			return task.User{}, fmt.Errorf("--user %s: an ordinary user's tasks run as that user, %d, and nobody else (root can choose)", o.flags.user, uid)
		}
	}
	u := task.UserOf(uint32(uid), uint32(gid), passwd) //nolint:gosec // ids are 32 bits
	u.GID = uint32(gid)                                //nolint:gosec // likewise
	return u, nil
}

// pipeOwner is who owns the pipes of a process that is u in the container.
func (o *operation) pipeOwner(u task.User) (uid, gid uint32) {
	if o.rootless && o.ownID() {
		return 0, 0 // the user, as this namespace has it
	}
	return u.UID, u.GID
}
