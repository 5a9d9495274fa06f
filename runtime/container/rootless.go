package container

import (
	"errors"
	"fmt"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/rootless"
)

// UserNamespaceAbove opens the user namespace in which a running container was set up by an ordinary user, for the
// caller to join and close; nil if there is no such container, or it does not run.
func (r *Runtime) UserNamespaceAbove(id string) (*os.File, error) {
	c, err := r.Load(id)
	if err != nil {
		return nil, nil //nolint:nilnil // none, or what is wrong with it is for whoever works on it to say
	}
	defer c.Close()
	if !c.state.UserNS || !c.initAlive() {
		return nil, nil //nolint:nilnil // there is none
	}
	above, err := rootless.Above(c.state.InitPID)
	if errors.Is(err, rootless.ErrNone) {
		return nil, nil //nolint:nilnil // likewise
	}
	return above, err
}

// planCgroup plans the container's cgroup; nil if a rootless caller can have none, and nothing asks for one.
func (cr *creation) planCgroup() (*cgroup.Config, error) {
	host, err := cgroup.ReadHost()
	isRootless := cr.rt.opts.Rootless
	switch {
	case isRootless && errors.Is(err, cgroup.ErrUnsupported):
		host = cgroup.Host{} // none is mounted, as in a container
	case err != nil:
		return nil, fmt.Errorf("read cgroups of the host: %w", err)
	}
	if isRootless {
		host.AskWritable()
		cr.limitByRlimit(&host)
	}
	cfg, err := cgroup.Plan(cgroup.Input{
		ID: cr.o.ID, CgroupsPath: cr.spec.Linux.CgroupsPath, Resources: cr.spec.Linux.Resources,
		Systemd: cr.rt.opts.SystemdCgroup, Rootless: isRootless, Host: host,
	})
	var field *cgroup.FieldError
	if isRootless && errors.Is(err, cgroup.ErrUnsupported) && errors.As(err, &field) {
		return nil, &profiles.RefusedError{
			What:  field.Field,
			Rule:  fmt.Sprintf("%s, so that the limit would not hold (profile %q)", field.Reason, cr.policy.Profile.Name),
			Allow: "leaving the limit out",
		}
	}
	return cfg, err
}

// limitByRlimit makes RLIMIT_NPROC enforce the limit of processes where no cgroup can and it says the same: the kernel
// counts for each uid of a user namespace (since Linux 5.14, d64696905554 "Reimplement RLIMIT_NPROC on top of ucounts"),
// and a container whose namespace has one uid, and which can't gain others, is counted as a whole.
func (cr *creation) limitByRlimit(host *cgroup.Host) {
	r := cr.spec.Linux.Resources
	if r == nil || r.Pids == nil || r.Pids.Limit == nil || *r.Pids.Limit <= 0 || host.Delegates("pids") ||
		len(cr.ns.uid) != 1 || cr.ns.uid[0].Size != 1 {
		return
	}
	cr.policy.PIDs = uint64(*r.Pids.Limit) //nolint:gosec // positive
	without := *r
	without.Pids = nil
	linux := *cr.spec.Linux
	linux.Resources = &without
	spec := *cr.spec
	spec.Linux = &linux
	cr.spec = &spec
}

// needsUserNamespace refuses an ordinary user's container without a user namespace of its own.
func (cr *creation) needsUserNamespace() error {
	if cr.rt.opts.SpecIDs == nil || cr.ns.own[specs.UserNamespace] || cr.ns.joined[specs.UserNamespace] != nil {
		return nil
	}
	return invalid("linux.namespaces", "an ordinary user's container needs a user namespace with mappings (`agentsafe spec --rootless` writes them)")
}

// OwnerOf returns what the ids of a process of the container are on this side, for what it is to own.
func (c *Container) OwnerOf(u specs.User) (uid, gid uint32) {
	outside := func(id uint32, name string) uint32 {
		m, err := rootless.ReadMapOf(c.state.InitPID, name)
		if err != nil {
			return id // it has ended
		}
		if n, ok := m.Outside(int(id)); ok {
			return uint32(n) //nolint:gosec // ids are 32 bits
		}
		return id
	}
	if !c.state.UserNS {
		return u.UID, u.GID
	}
	return outside(u.UID, "uid_map"), outside(u.GID, "gid_map")
}
