package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
	"github.com/agentsafe/agentsafe/profiles"
)

// Containers that share a network namespace are a pod, and have one gateway. It is the process of one of them, its owner;
// the others join it, which narrows its policy to what all of them allow, and leave it when they are deleted. If the
// owner ends, its gateway does, and the next one whose supervisor notices becomes the owner. Whoever changes any of that
// holds a lock on the namespace itself, so that nothing has to be cleaned up after a crash.

// podTag names the gateways of this runtime's root directory in the rules of a namespace. Another root's containers are
// not seen from here, so their gateway is not touched.
func (r *Runtime) podTag() string {
	h := fnv.New64a()
	root, err := filepath.Abs(r.opts.Root)
	if err != nil {
		root = r.opts.Root
	}
	h.Write([]byte(root))
	return fmt.Sprintf("%016x", h.Sum64())
}

// lockNamespace serialises what is done to the gateway of a namespace. Closing ns lets it go.
func lockNamespace(ns *os.File) error {
	for {
		err := unix.Flock(int(ns.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("flock", err)
		}
	}
}

// podMember is a container that shares the network namespace with another one.
type podMember struct {
	*Container
	detail *Detail
	// gateway says that it owns a gateway that runs.
	gateway bool
}

// podMembers finds the other containers that live in ns and have a gateway's policy. The caller closes them.
func (c *Container) podMembers(ns *os.File) ([]podMember, error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &want); err != nil {
		return nil, fmt.Errorf("find containers of the pod: %w", err)
	}
	ids, err := c.rt.List()
	if err != nil {
		return nil, fmt.Errorf("find containers of the pod: %w", err)
	}
	var out []podMember
	for _, id := range ids {
		if id == c.id {
			continue
		}
		o, err := c.rt.Load(id)
		if err != nil {
			continue // it is being made or removed
		}
		var st unix.Stat_t
		same := o.state.Network == netns.ModeGateway && o.initAlive() &&
			unix.Stat("/proc/"+strconv.Itoa(o.state.InitPID)+"/ns/net", &st) == nil && st.Dev == want.Dev && st.Ino == want.Ino
		var d *Detail
		if same {
			d, err = o.details()
		}
		if !same || err != nil {
			o.Close()
			continue
		}
		m := podMember{Container: o, detail: d}
		if own, err := o.gatewayRecord(); err == nil && own.Owner == "" {
			pidfd, _, err := o.Gateway()
			if m.gateway = err == nil; m.gateway {
				pidfd.Close()
			}
		}
		out = append(out, m)
	}
	return out, nil
}

func closeMembers(list []podMember) {
	for _, m := range list {
		m.Close()
	}
}

// asMember is what a gateway has to know of a container. Its credentials count if the owner has the same.
func (c *Container) asMember(p *Policy, owner *profiles.Profile) wire.Member {
	m := wire.Member{
		Container: c.id, Policy: egressConfig(&p.Profile.Network), Ceiling: p.Ceiling, Limits: gatewayLimits(&p.Profile.Limits),
		Placeholders: map[string]string{},
	}
	for i := range p.Profile.Network.Credentials {
		cred := &p.Profile.Network.Credentials[i]
		for j := range owner.Network.Credentials {
			if reflect.DeepEqual(*cred, owner.Network.Credentials[j]) {
				m.Placeholders[cred.Name] = placeholderOf(c.id, c.state.Created, cred.Name)
			}
		}
	}
	return m
}

func gatewayLimits(l *profiles.Limits) wire.Limits {
	return wire.Limits{
		EgressBytes: l.EgressBytes, IngressBytes: l.IngressBytes, Connections: int(l.EgressConnections), RequestsPerName: l.EgressRequests,
	}
}

func egressConfig(n *profiles.Network) egress.Config {
	return egress.Config{Allow: n.Allow, Deny: n.Deny, RuleSets: n.RuleSets, Addresses: n.Addresses}
}

// joinPod lets the container's policy narrow the gateway of another one, and remembers whose it is.
func (c *Container) joinPod(owner podMember, p *Policy) error {
	m := c.asMember(p, owner.detail.Policy.Profile)
	if err := askGateway(owner.dir, &wire.Request{Op: "join", Member: &m}); err != nil {
		return fmt.Errorf("join the gateway of container %q, which shares the network: %w", owner.id, err)
	}
	record, err := owner.gatewayRecord()
	if err != nil {
		return err
	}
	record.Owner = owner.id
	if err := replaceJSON(c.dir, networkProcess, record); err != nil {
		return err
	}
	return c.noteOrigin(c.socketGroup(), wire.FirstProcess, "")
}

// leavePod takes the container's policy out of the gateway of another one. A gateway that has ended needs nothing.
func (c *Container) leavePod() {
	if c.state.Network != netns.ModeGateway {
		return
	}
	record, err := c.gatewayRecord()
	if err != nil || record.Owner == "" {
		return
	}
	owner, err := c.rt.openDir(record.Owner)
	if err != nil {
		return
	}
	defer owner.Close()
	askGateway(owner.dir, &wire.Request{Op: "leave", Member: &wire.Member{Container: c.id}}) //nolint:errcheck // its policy stays as narrow as it is
}

// gatewayRecord reads which process serves the container. The error is unix.ENOENT if there never was one.
func (c *Container) gatewayRecord() (*gatewayRecord, error) {
	var r gatewayRecord
	err := loadJSON(c.dir, networkProcess, &r)
	return &r, err
}

// GatewayOwner returns whose gateway serves the container with this state directory, "" if it is its own.
func GatewayOwner(dir *os.File) string {
	var r gatewayRecord
	if loadJSON(dir, networkProcess, &r) != nil || ValidateID(r.Owner) != nil {
		return ""
	}
	return r.Owner
}

// gatewayAnswerWait is how long a gateway may take to answer.
const gatewayAnswerWait = 5 * time.Second

// askGateway sends one request to the gateway whose control socket is in dir.
func askGateway(dir *os.File, r *wire.Request) error {
	// By handle: the path of a socket must be short, and that of a state directory need not be.
	conn, err := net.DialTimeout("unix", "/proc/self/fd/"+strconv.Itoa(int(dir.Fd()))+"/"+NetworkControl, gatewayAnswerWait) //nolint:noctx // a local socket, with its own limit
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(gatewayAnswerWait)) //nolint:errcheck // Encode says what is wrong
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return err
	}
	const maxAnswer = 16 << 20
	data, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if err != nil {
		return err
	}
	var answer struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}
