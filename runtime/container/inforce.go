package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/profiles"
)

// InForceDir is the directory below a container's state that the container sees at [profiles.InForceDir], read-only.
// Nothing in it is a secret of the host's, and the container's processes are none of its writers.
const InForceDir = "inforce"

// inForce is what the task is told about its policy; nil under a profile without rules.
type inForce struct {
	policy  []byte
	text    string
	watched bool
}

// tells reports whether the container has a place where it can be told: a /dev of its own. In the root file system the
// mount point would stay behind in the image's layer.
func tells(plan []rootfs.Mount) bool {
	for i := range plan {
		if plan[i].Destination == "/dev" {
			return !plan[i].Bind && plan[i].Type == "tmpfs"
		}
	}
	return false
}

// inForceEnv tells a process where to read.
func inForceEnv(p *specs.Process, watched bool) {
	env := setEnv(slices.Clone(p.Env), profiles.PolicyVariable, profiles.InForceDir+"/"+profiles.InForcePolicy)
	if watched {
		env = setEnv(env, profiles.DenialsVariable, profiles.InForceDir+"/"+profiles.InForceDenials)
	}
	p.Env = env
}

// inheritInForce gives an exec the variables of the first process.
func inheritInForce(p, first *specs.Process) {
	for _, e := range first.Env {
		name, value, _ := strings.Cut(e, "=")
		if (name == profiles.PolicyVariable || name == profiles.DenialsVariable) && strings.HasPrefix(value, profiles.InForceDir+"/") {
			p.Env = setEnv(slices.Clone(p.Env), name, value)
		}
	}
}

// disclose writes down what the task may read of its policy, and adds the mount that shows it. A bind mount of the
// state directory's files: a file system of its own would cost more than the three files, and whoever supervises the
// container can append to them while it runs.
func (cr *creation) disclose(context.Context) error {
	told := cr.told
	if told == nil {
		return nil
	}
	if err := unix.Mkdirat(int(cr.c.dir.Fd()), InForceDir, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make directory of the policy in force: %w", err)
	}
	fd, err := unix.Openat(int(cr.c.dir.Fd()), InForceDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open directory of the policy in force: %w", err)
	}
	dir := os.NewFile(uintptr(fd), InForceDir)
	defer dir.Close()
	// The caller's umask may have taken bits away, and the task is somebody else.
	if err := unix.Fchmod(fd, 0o755); err != nil {
		return fmt.Errorf("open directory of the policy in force to the task: %w", err)
	}
	files := []disclosed{{profiles.InForcePolicy, told.policy}, {profiles.InForceText, []byte(told.text)}, {profiles.InForceDenials, nil}}
	if !told.watched {
		files = files[:2]
	}
	if i := cr.policy.Inspection; i != nil {
		authority, bundle, err := i.certificates()
		if err != nil {
			return fmt.Errorf("read whom the task has to trust: %w", err)
		}
		files = append(files, disclosed{profiles.InForceAuthority, authority}, disclosed{profiles.InForceBundle, bundle},
			disclosed{profiles.InForceKeystore, trustStore(bundle, cr.c.state.Created)})
	}
	for _, f := range files {
		if err := writeReadable(dir, f.name, f.data); err != nil {
			return fmt.Errorf("write the policy in force: %w", err)
		}
	}
	m := rootfs.Mount{
		Destination: profiles.InForceDir, Bind: true, Type: "bind", Source: InForceDir,
		Attr: rootfs.Attr{Set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC},
	}
	src, err := m.OpenSource(cr.c.dir)
	if err != nil {
		return err
	}
	cr.plan, cr.src = append(cr.plan, m), append(cr.src, src)
	return nil
}

// disclosed is a file that the task can read.
type disclosed struct {
	name string
	data []byte
}

// writeReadable makes a file that everybody can read.
func writeReadable(dir *os.File, name string, data []byte) error {
	const mode = 0o444
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := unix.Fchmod(fd, mode); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if _, err := f.Write(data); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// OpenDenials opens the file that the task reads its refusals from, to append to; the caller closes it. The error is
// unix.ENOENT if the container has none.
func (c *Container) OpenDenials() (*os.File, error) {
	name := InForceDir + "/" + profiles.InForceDenials
	fd, err := unix.Openat2(int(c.dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDWR | unix.O_APPEND | unix.O_NONBLOCK | unix.O_CLOEXEC, // not to wait for a lease of the task's
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("open denials of container %q: %w", c.id, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// InForce returns the profile that the task is told, with its paths expanded.
func (c *Container) InForce() (*profiles.Profile, error) {
	fd, err := unix.Openat2(int(c.dir.Fd()), InForceDir+"/"+profiles.InForcePolicy, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("open policy in force of container %q: %w", c.id, err)
	}
	f := os.NewFile(uintptr(fd), profiles.InForcePolicy)
	defer f.Close()
	var told struct {
		Profile *profiles.Profile `json:"profile"`
	}
	err = json.NewDecoder(f).Decode(&told)
	if err == nil && told.Profile == nil {
		err = errors.New("it has no profile")
	}
	if err != nil {
		return nil, fmt.Errorf("read policy in force of container %q: %w", c.id, err)
	}
	return told.Profile, nil
}

// removeInForce removes the directory; it is no error if there is none.
func (c *Container) removeInForce() error {
	err := unix.Unlinkat(int(c.dir.Fd()), InForceDir, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	for _, name := range []string{profiles.InForcePolicy, profiles.InForceText, profiles.InForceDenials, profiles.InForceAuthority, profiles.InForceBundle, profiles.InForceKeystore} {
		if err := unix.Unlinkat(int(c.dir.Fd()), InForceDir+"/"+name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %s of container %q: %w", name, c.id, err)
		}
	}
	if err := unix.Unlinkat(int(c.dir.Fd()), InForceDir, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s of container %q: %w", InForceDir, c.id, err)
	}
	return nil
}
