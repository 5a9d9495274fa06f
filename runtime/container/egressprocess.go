package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/rootless"
)

const (
	gatewayProgram = "agentsafe-gateway"
	gatewayWait    = 10 * time.Second
	// gatewayUIDs is where the uids of gateways begin, and how many there are: beyond every range that distributions and
	// systemd hand out. Two gateways share one only by a collision of hashes, and both are undumpable.
	gatewayUIDs     = 0x70000000
	gatewayUIDCount = 1 << 20
	// gatewayMemoryBytes is what its Go runtime aims to stay below.
	gatewayMemoryBytes = 256 << 20
	// gatewayCollect is a little processor time more for memory: idle connections are most of what it holds.
	gatewayCollect = "GOGC=60"
)

// gatewayProcess starts the egress process of a container.
type gatewayProcess struct {
	c       *Container
	sockets *netns.GatewaySockets
	config  *wire.Config
	// refused is the socket of netns.OpenRefusedLog, nil for none.
	refused *os.File
	// diag are the sockets of netns.OpenSocketDiag, if there are any.
	diag []*os.File
	// inspection is nil if it looks into no TLS.
	inspection *Inspection
	// ns is the network namespace that it runs in, nil for the host's; cgroup a directory of the cgroup2 hierarchy.
	ns, cgroup *os.File
	// wait has start return once the process serves. Otherwise it returns when the process has all that it needs: what is
	// sent meanwhile waits in the sockets, which are open, and one that does not come up has ended, as one that ends later.
	wait bool
}

// start starts the process, which ends by itself when the container's first one does.
func (g *gatewayProcess) start() error {
	files, names, parent, err := g.donate()
	if err != nil {
		closeFiles(files)
		return err
	}
	defer parent.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		closeFiles(files)
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer null.Close()
	// By handle: its user may not be able to reach the directory that the programs are in.
	program, err := os.OpenFile(g.c.rt.gatewayPath(), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		closeFiles(files)
		return explainGateway(err)
	}
	defer program.Close()
	// Above all that the child's own descriptors are moved to on their way to their places, which would take this one's.
	const high = 256
	at, err := unix.FcntlInt(program.Fd(), unix.F_DUPFD_CLOEXEC, high)
	if err != nil {
		closeFiles(files)
		return fmt.Errorf("duplicate descriptor of %s: %w", gatewayProgram, err)
	}
	defer unix.Close(at)
	sys, err := g.identity()
	if err != nil {
		closeFiles(files)
		return err
	}
	env := []string{"LISTEN_FDNAMES=" + strings.Join(names, ":"), "GOMEMLIMIT=" + strconv.Itoa(gatewayMemoryBytes), gatewayCollect}
	var within func(func() error) error
	if g.ns != nil {
		within = func(f func() error) error { return netns.Within(g.ns, f) }
	}
	process, err := startProgram("/proc/self/fd/"+strconv.Itoa(at), []string{gatewayProgram, g.c.id}, env,
		append([]*os.File{null, null, null}, files...), sys, within)
	// Its end of the socket pair among them: otherwise nobody here would see it end.
	closeFiles(files)
	if err != nil {
		return explainGateway(err)
	}
	err = g.admit(process.pid, parent)
	if err == nil {
		err = g.record(process.pid)
	}
	if err != nil {
		process.kill()
	}
	go process.wait() // a short-lived parent leaves that to init
	return err
}

// identity is who the process runs as: a uid of its own, without capabilities. An ordinary user has no such uid to give. Its
// gateway gets a user namespace of its own, in which it has that uid and may do nothing; to the host's kernel it is the
// user's last subordinate id, or the user. The task is in another user namespace, sees no process of this one, and the
// gateway is undumpable, so that sharing an id with it gives the task no hold on it.
func (g *gatewayProcess) identity() (*syscall.SysProcAttr, error) {
	uid := gatewayUID(g.c.id)
	sys := &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if !g.c.rt.opts.Rootless {
		return sys, nil
	}
	last := func(name string) ([]syscall.SysProcIDMap, error) {
		m, err := rootless.ReadMap(name)
		if err != nil {
			return nil, err
		}
		return []syscall.SysProcIDMap{{ContainerID: int(uid), HostID: max(m.Size()-1, 0), Size: 1}}, nil
	}
	var err error
	if sys.UidMappings, err = last("uid_map"); err != nil {
		return nil, err
	}
	if sys.GidMappings, err = last("gid_map"); err != nil {
		return nil, err
	}
	sys.Cloneflags = unix.CLONE_NEWUSER
	sys.Credential.NoSetGroups = rootless.SetgroupsDenied() // where one id is mapped the groups stay the user's
	sys.GidMappingsEnableSetgroups = !sys.Credential.NoSetGroups
	return sys, nil
}

// record writes down which process it is.
func (g *gatewayProcess) record(pid int) error {
	start, _, err := startTime(pid)
	if err != nil {
		return fmt.Errorf("read its start time: %w", err)
	}
	return replaceJSON(g.c.dir, networkProcess, &gatewayRecord{PID: pid, Start: start})
}

func explainGateway(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w (it is installed beside agentsafe)", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (its uid, from %d on, must exist in this user namespace)", err, gatewayUIDs)
	}
	return err
}

// admit places the process, tells it what to do and, if asked to, waits until it does. Before it has read the
// configuration it opens no socket, so the placement is in time.
func (g *gatewayProcess) admit(pid int, parent *os.File) error {
	if g.cgroup != nil {
		if err := writeAt(g.cgroup, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("place it in its cgroup: %w", err)
		}
	}
	data, err := json.Marshal(g.config)
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	if _, err := parent.Write(data); err != nil {
		return fmt.Errorf("send configuration: %w", err)
	}
	if err := unix.Shutdown(int(parent.Fd()), unix.SHUT_WR); err != nil {
		return fmt.Errorf("send configuration: %w", err)
	}
	if !g.wait {
		return nil
	}
	tv := unix.NsecToTimeval(gatewayWait.Nanoseconds())
	if err := unix.SetsockoptTimeval(int(parent.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("wait for it: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(parent, 4096))
	if line := strings.TrimSpace(string(answer)); line != "ready" {
		if line == "" {
			line = "ended without a word"
		}
		return errors.Join(errors.New(line), err)
	}
	return nil
}

// donate collects its descriptors and their names; parent is this side's end of the first.
func (g *gatewayProcess) donate() (files []*os.File, names []string, parent *os.File, err error) {
	add := func(name string, f *os.File) {
		files, names = append(files, f), append(names, name)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return files, names, nil, fmt.Errorf("make socket pair: %w", err)
	}
	parent = os.NewFile(uintptr(fds[0]), "gateway")
	add("config", os.NewFile(uintptr(fds[1]), "config"))
	task, err := g.c.pidfd()
	if err == nil {
		add("task", task)
		var fd int
		if fd, err = unix.Openat(int(g.c.dir.Fd()), NetworkLog, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600); err == nil {
			add("log", os.NewFile(uintptr(fd), NetworkLog))
		}
	}
	if err == nil {
		var control *os.File
		if control, err = listenIn(g.c.dir, NetworkControl); err == nil {
			add("control", control)
		}
	}
	if err == nil && g.refused != nil {
		var f *os.File
		if f, err = duplicate(g.refused); err == nil {
			add("refused", f)
		}
	}
	if err == nil && len(g.diag) > 0 {
		var execs *os.File
		if execs, err = g.c.openOrigins(); err == nil {
			add("execs", execs)
		}
	}
	if err == nil && g.inspection != nil {
		var cert, key *os.File
		if cert, key, err = g.inspection.open(); err == nil {
			add("authority", cert)
			add("authoritykey", key)
		}
	}
	if err != nil {
		parent.Close()
		return files, names, nil, err
	}
	for _, kind := range []struct {
		name string
		list []*os.File
	}{{"tcp", g.sockets.TCP}, {"dns", g.sockets.DNS}, {"dnstcp", g.sockets.DNSTCP}, {"diag", g.diag}} {
		for _, f := range kind.list {
			f, err := duplicate(f)
			if err != nil {
				parent.Close()
				return files, names, nil, err
			}
			add(kind.name, f)
		}
	}
	return files, names, parent, nil
}

// duplicate makes a second descriptor of a socket, which the caller closes.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate socket: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// listenIn makes a unix socket in an open directory that root alone can connect to. One that a gateway before left is
// replaced.
func listenIn(dir *os.File, name string) (*os.File, error) {
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove old socket %s: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	// The directory is 0700, so nobody else gets here before the mode is set.
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + name})
	if err == nil {
		err = unix.Fchmodat(int(dir.Fd()), name, 0o600, 0)
	}
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make socket %s: %w", name, err)
	}
	return f, nil
}

// gatewayUID derives a uid from a container's id.
func gatewayUID(id string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(id))
	return gatewayUIDs + h.Sum32()%gatewayUIDCount
}

// gatewayPath finds the program beside this one.
func (r *Runtime) gatewayPath() string {
	if r.opts.Gateway != "" {
		return r.opts.Gateway
	}
	self, err := os.Executable()
	if err != nil {
		return gatewayProgram
	}
	return filepath.Join(filepath.Dir(self), gatewayProgram)
}

// gatewayCgroup makes the cgroup of all gateways that dial through their containers' networks, at the first level of the
// cgroup2 hierarchy, and returns its directory and id. The hierarchy is mounted without a place in the file system: a
// host with cgroup v1 has it as well, and need not show it. The cgroup stays when the last gateway has ended: whoever
// removed it could do so between another one's look at its id and the start of its process.
func gatewayCgroup() (*os.File, uint64, error) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, 0, fmt.Errorf("open cgroup2: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, 0, fmt.Errorf("open cgroup2: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("mount cgroup2: %w", err)
	}
	defer unix.Close(mount)
	if err := unix.Mkdirat(mount, gatewayProgram, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, 0, fmt.Errorf("make cgroup of gateways: %w", err)
	}
	fd, err := unix.Openat(mount, gatewayProgram, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open cgroup of gateways: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("stat cgroup of gateways: %w", err)
	}
	return os.NewFile(uintptr(fd), gatewayProgram), st.Ino, nil
}

func writeAt(dir *os.File, name, text string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

const (
	maxSecretBytes = 64 << 10
	secretWait     = 10 * time.Second
)

// readCredential gets a secret from where the profile says, as it is when the container starts.
func (c *Container) readCredential(in *profiles.Credential) (wire.Credential, error) {
	out := wire.Credential{Name: in.Name, Present: in.Present, Inspect: in.Inspect, Placeholder: placeholderOf(c.id, c.state.Created, in.Name)}
	host, portText, ok := strings.Cut(in.Destination, ":")
	port := uint64(443)
	if ok {
		var err error
		if port, err = strconv.ParseUint(portText, 10, 16); err != nil {
			return out, fmt.Errorf("destination %q: not HOST:PORT", in.Destination)
		}
	}
	out.Host, out.Port = host, uint16(port)
	var secret []byte
	var err error
	if len(in.Command) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), secretWait)
		defer cancel()
		secret, err = exec.CommandContext(ctx, in.Command[0], in.Command[1:]...).Output() //nolint:gosec // the administrator's own command
	} else {
		secret, err = readSecret(in.File)
	}
	out.Secret = string(bytes.TrimSpace(secret))
	return out, err
}

// readSecret refuses files that everybody can read: then it is no secret.
func readSecret(name string) ([]byte, error) {
	f, err := os.OpenFile(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	const others = 0o007
	if !info.Mode().IsRegular() || info.Mode().Perm()&others != 0 {
		return nil, fmt.Errorf("%s: want a regular file that others than its owner and group can't read", name)
	}
	return io.ReadAll(io.LimitReader(f, maxSecretBytes))
}
