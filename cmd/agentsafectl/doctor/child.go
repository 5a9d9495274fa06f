package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names of the probes that run in a child, see RunProbe.
const (
	probeNothing     = "nothing"
	probeOverlay     = "overlay"
	probeOverlayUser = "overlay-user"
	probeNFTables    = "nftables"
)

const childTimeout = 10 * time.Second

// children runs the probes that need namespaces.
func children(ctx context.Context, o Options, f *Facts) {
	f.UserNSErr = errText(child(ctx, o, probeNothing, unix.CLONE_NEWUSER))
	f.OverlayErr = errText(child(ctx, o, probeOverlay, unix.CLONE_NEWNS))
	f.OverlayUserErr = errText(child(ctx, o, probeOverlayUser, unix.CLONE_NEWNS|unix.CLONE_NEWUSER))
	f.NFTablesErr = errText(child(ctx, o, probeNFTables, unix.CLONE_NEWNET))
	if f.Cgroup.Mode == "unified" {
		f.Cgroup.IntoErr = errText(intoCgroup(ctx, o))
	}
}

// child executes this program again, in new namespaces, to run one probe.
func child(ctx context.Context, o Options, name string, flags uintptr) error {
	if os.Geteuid() != 0 {
		flags |= unix.CLONE_NEWUSER
	}
	attr := &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if flags&unix.CLONE_NEWUSER != 0 {
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return runChild(ctx, o, name, attr)
}

// intoCgroup starts a child in our own cgroup by clone3.
func intoCgroup(ctx context.Context, o Options) error {
	group, err := os.Open(filepath.Join("/sys/fs/cgroup", ownCgroup()))
	if err != nil {
		return err
	}
	defer group.Close()
	return runChild(ctx, o, probeNothing, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())})
}

func runChild(ctx context.Context, o Options, name string, attr *syscall.SysProcAttr) error {
	ctx, cancel := context.WithTimeout(ctx, childTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.Program, append(append([]string{}, o.ProbeArgs...), name)...)
	cmd.SysProcAttr = attr
	cmd.Env = []string{}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && stderr.Len() > 0 {
		return errors.New(strings.TrimSpace(stderr.String()))
	}
	return err
}

// RunProbe is what the child does. It runs in namespaces of its own, so that
// whatever it makes goes with it.
func RunProbe(name string) error {
	switch name {
	case probeNothing:
		return nil
	case probeOverlay:
		return tryOverlay()
	case probeOverlayUser:
		return tryOverlay("userxattr")
	case probeNFTables:
		return tryNFTables()
	default:
		return fmt.Errorf("unknown probe %q", name)
	}
}

// tryOverlay mounts an overlay of two directories of a new tmpfs.
func tryOverlay(options ...string) error {
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	const base = "/tmp"
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil { //nolint:forbidigo // in a namespace of its own
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := unix.Mkdir(filepath.Join(base, d), 0o755); err != nil {
			return err
		}
	}
	data := strings.Join(append([]string{"lowerdir=/tmp/lower", "upperdir=/tmp/upper", "workdir=/tmp/work"}, options...), ",")
	if err := unix.Mount("overlay", base+"/merged", "overlay", 0, data); err != nil { //nolint:forbidigo // likewise
		return fmt.Errorf("mount overlay: %w", err)
	}
	return nil
}

// tryNFTables installs what the metadata rules are made of: an inet table, a
// chain in the output hook, a rule.
func tryNFTables() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "agentsafe-probe"})
	policy := nftables.ChainPolicyDrop
	chain := c.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Counter{},
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("install rules: %w", err)
	}
	return nil
}
