package main

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/agentsafe/agentsafe/runtime/criu"
)

// checkpointFlags are those of checkpoint and restore, named as runc's.
type checkpointFlags struct {
	criu.Options
	emptyNS string
	// others are flags of runc's that nothing comes of.
	others []string
}

// newCheckpointFlags registers them.
func (a *app) newCheckpointFlags(name string) (*flag.FlagSet, *checkpointFlags) {
	fs, f := newFlags(name, "ID"), &checkpointFlags{}
	fs.StringVar(&f.Images, "image-path", "checkpoint", "`directory` of images")
	fs.StringVar(&f.Work, "work-path", "", "`directory` of CRIU's logs (default: that of the images)")
	fs.BoolVar(&f.TCPEstablished, "tcp-established", false, "open TCP connections, too")
	fs.BoolVar(&f.TCPSkipInFlight, "tcp-skip-in-flight", false, "without TCP connections that are being opened")
	fs.BoolVar(&f.ExtUnixSk, "ext-unix-sk", false, "unix sockets to the outside, too")
	fs.BoolVar(&f.ShellJob, "shell-job", false, "a session that began outside, too")
	fs.BoolVar(&f.FileLocks, "file-locks", false, "file locks, too")
	fs.BoolVar(&f.LinkRemap, "link-remap", false, "files that were removed while open, too")
	fs.StringVar(&f.emptyNS, "empty-ns", "", "`namespace` to restore empty: network")
	for _, n := range []string{"parent-path", "status-fd", "page-server"} {
		fs.Func(n, "refused: what runc's does is not supported", func(string) error {
			f.others = append(f.others, n)
			return nil
		})
	}
	for _, n := range []string{"lazy-pages", "pre-dump"} {
		fs.BoolFunc(n, "refused: what runc's does is not supported", func(string) error {
			f.others = append(f.others, n)
			return nil
		})
	}
	fs.String("manage-cgroups-mode", "", "taken, without effect: the container's cgroup is the one that its spec names")
	fs.Bool("auto-dedup", false, "taken, without effect")
	return fs, f
}

// options checks the flags once they are parsed.
func (f *checkpointFlags) options(a *app) (*criu.Options, error) {
	if len(f.others) > 0 {
		return nil, fmt.Errorf("--%s is not supported", strings.Join(f.others, ", --"))
	}
	switch f.emptyNS {
	case "":
	case "network":
		f.EmptyNetwork = true
	default:
		return nil, fmt.Errorf("--empty-ns %q is not supported, only network is", f.emptyNS)
	}
	f.Program = a.criu
	var err error
	if f.Images, err = filepath.Abs(f.Images); err != nil {
		return nil, err
	}
	if f.Work != "" {
		f.Work, err = filepath.Abs(f.Work)
	}
	return &f.Options, err
}

// checkpoint has CRIU write the container to files. As runc's it removes the container, unless that runs on.
func (a *app) checkpoint(ctx context.Context, args []string) error {
	fs, f := a.newCheckpointFlags("checkpoint")
	fs.BoolVar(&f.LeaveRunning, "leave-running", false, "let the container go on")
	id, err := parseID(fs, args)
	if err != nil {
		return err
	}
	o, err := f.options(a)
	if err != nil {
		return err
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	if err := c.Checkpoint(ctx, o); err != nil || o.LeaveRunning {
		return err
	}
	rt, err := a.runtime()
	if err != nil {
		return err
	}
	return rt.Delete(ctx, id, true)
}

// restore makes a container of such files.
func (a *app) restore(ctx context.Context, args []string) error {
	var create createFlags
	fs, f := a.newCheckpointFlags("restore")
	create.register(fs)
	detach := fs.Bool("detach", false, "return once the container runs")
	fs.BoolVar(detach, "d", false, "return once the container runs")
	fs.Bool("no-subreaper", false, "ignored: orphans are the container's own")
	fs.StringVar(&f.LSMProfile, "lsm-profile", "", "`type:name` of a security module's profile in place of the one written")
	fs.StringVar(&f.LSMMountContext, "lsm-mount-context", "", "`context` of mounts in place of the one written")
	id, err := parseID(fs, args)
	if err != nil {
		return err
	}
	images, err := f.options(a)
	if err != nil {
		return err
	}
	if err := a.enter(id); err != nil {
		return err
	}
	rt, err := a.runtime()
	if err != nil {
		return err
	}
	o, err := create.options(id)
	if err != nil {
		return err
	}
	var arriving *signals
	if !*detach {
		arriving = collectSignals()
		<-arriving.collecting
	}
	c, err := rt.Restore(ctx, o, images)
	if err != nil || *detach {
		return err
	}
	status, err := supervise(c.Init(), arriving, nil)
	if derr := c.Delete(ctx); err == nil {
		err = derr
	}
	if err != nil {
		return err
	}
	return statusError(status)
}
