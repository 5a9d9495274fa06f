package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/profiles"
)

// engineDirs are where engines bind single files of theirs: name servers, host names, messages of termination.
var engineDirs = []string{"dev", "proc", "sys", "etc", "run"} //nolint:gochecknoglobals // a constant table

// checkFiles refuses writable binds of single files, which an overlay can't have below: they would be written through to
// the host. Those that engines make, and those that filesystem.workspace.paths leaves out, stay as they are.
func checkFiles(mounts []rootfs.Mount, src sources, w *profiles.Workspace) error {
	for i := range mounts {
		m := &mounts[i]
		first, _, _ := strings.Cut(strings.TrimPrefix(m.Destination, "/"), "/")
		if !m.Bind || src[i] == nil || src[i].Mode&unix.S_IFMT != unix.S_IFREG || (m.Attr.Set|m.RecAttr.Set)&unix.MOUNT_ATTR_RDONLY != 0 ||
			slices.Contains(engineDirs, first) || len(w.Paths) > 0 && !slices.Contains(w.Paths, m.Destination) {
			continue
		}
		return &profiles.RefusedError{
			What:  fmt.Sprintf("mounts[%d]: %s on %s, writable", i, m.Source, m.Destination),
			Rule:  "workspaces are overlaid (filesystem.workspace.mode overlay), and a single file can't be",
			Allow: "mounting it read-only, mounting its directory, or filesystem.workspace.paths without it",
		}
	}
	return nil
}

// workspaces puts overlays in the place of the bind mounts that the task works on.
func (cr *creation) workspaces(context.Context) error {
	w := cr.workspace
	if cr.worktree != nil {
		var err error
		if cr.commonMount, err = cr.overlaidWorktree(); err != nil {
			return err
		}
	}
	if w.Mode != profiles.WorkspaceOverlay {
		return nil
	}
	if err := checkFiles(cr.plan, cr.src, &w); err != nil {
		return err
	}
	if len(cr.workspaceMounts) == 0 {
		return nil
	}
	store := cr.rt.opts.LayersDir
	if store == "" {
		store = layer.DefaultDir
	}
	continued, err := cr.openLayers(store)
	if err != nil {
		return err
	}
	cr.c.state.Layers = store
	for _, i := range cr.workspaceMounts {
		if err := cr.overlay(i, continued); err != nil {
			return fmt.Errorf("mounts[%d]: %w", i, err)
		}
	}
	if cr.worktree == nil {
		return nil
	}
	if err := cr.worktree.register(cr.src[cr.commonMount].Tree); err != nil {
		return err
	}
	if cr.worktree.Keep {
		return nil
	}
	// It goes with the layers from now on; the state is saved with the first process.
	cr.layers.Folder, err = layer.OpenFolder(cr.worktree.Dir)
	return err
}

// openLayers opens the layers of a container that its engine starts again, or makes new ones.
func (cr *creation) openLayers(store string) (continued bool, err error) {
	if cr.worktree == nil && layer.GivenOnce(cr.o.ID) {
		var want []layer.WorkspaceOptions
		for _, i := range cr.workspaceMounts {
			want = append(want, cr.layerOptions(i))
		}
		l, err := layer.Continue(store, cr.o.ID, want)
		if err != nil { // they are kept, and nothing that the task wrote is lost
			cr.rt.opts.Warn(fmt.Sprintf("the container begins with the host's folders again, and its earlier layers are set aside: %v", err))
		}
		if l != nil {
			if l.Torn() {
				cr.rt.opts.Warn("the machine went down while the container ran: the last seconds of its layers may be missing")
			}
			cr.layers = l
			cr.undo.push(func() {
				l.End() //nolint:errcheck // the first error is the one to report
				l.Close()
			})
			return true, nil
		}
	}
	if cr.layers, err = layer.Create(store, cr.o.ID); err != nil {
		return false, err
	}
	cr.undo.push(func() {
		cr.layers.Close()
		layer.Remove(store, cr.o.ID, nil) //nolint:errcheck // the first error is the one to report
	})
	return false, nil
}

// layerOptions are what the layers of one mount have to be.
func (cr *creation) layerOptions(i int) layer.WorkspaceOptions {
	m, s := &cr.plan[i], cr.src[i]
	var nested []string
	for _, other := range cr.spec.Mounts {
		if strings.HasPrefix(other.Destination, strings.TrimSuffix(m.Destination, "/")+"/") {
			nested = append(nested, other.Destination)
		}
	}
	return layer.WorkspaceOptions{
		Path: s.Path, Destination: m.Destination, Nested: nested, Quota: cr.layerQuota(), Memory: cr.workspace.MemoryBytes > 0,
	}
}

// overlay replaces the source of one mount.
func (cr *creation) overlay(i int, continued bool) error {
	m, s := &cr.plan[i], cr.src[i]
	// Of the host's own mount namespace, not the detached copy: overlayfs takes the former alone before Linux 6.15.
	source, err := os.OpenFile(s.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open workspace: %w", err)
	}
	defer source.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil || st.Dev != s.Dev || st.Ino != s.Ino {
		return fmt.Errorf("workspace %q changed while it was opened: %w", s.Path, errors.Join(err, unix.ESTALE))
	}
	clone := layer.CopyOptions{UpTo: cr.workspace.CopyBytes, Note: cr.rt.opts.Warn}
	if transacts(cr.policy.Profile) {
		on, err := layer.OnOverlay(source)
		switch {
		case err != nil:
			return err
		case on && clone.UpTo > 0:
			clone.Need = errTooDeep
		case on:
			if err := cr.refuseDepth(m, s.Path); err != nil {
				return err
			}
		}
	}
	o := cr.layerOptions(i)
	o.Copy = clone
	var merged *os.File
	if continued {
		merged, err = cr.layers.Again(source, &o)
	} else {
		merged, err = cr.layers.AddWorkspace(source, o)
	}
	if err != nil {
		return err
	}
	s.Tree.Close()
	s.Tree = merged
	return nil
}

// errTooDeep is why a folder can be overlaid and no exec can have a layer of its own on it (FILESYSTEM_MAX_STACK_DEPTH).
var errTooDeep = errors.New("the folder lies on an overlay, each exec is an overlay on the workspace's own, and the kernel stacks two at most")

// refuseDepth refuses a workspace on which no exec could have a layer of its own. A task that was started to run alone is
// only warned.
func (cr *creation) refuseDepth(m *rootfs.Mount, folder string) error {
	refused := &profiles.RefusedError{
		What:  fmt.Sprintf("a transaction on %s: the folder %s lies on an overlay", m.Destination, folder),
		Rule:  "exec.transaction is auto: each exec is an overlay on the workspace's own, and the kernel stacks two at most",
		Allow: "a folder of another file system, a profile without exec.transaction, with filesystem.workspace.copy, or with the workspace mode direct",
	}
	if cr.o.Attached && !cr.o.Held {
		cr.rt.opts.Warn(refused.Error() + "; the task itself runs, and execs will be refused")
		return nil
	}
	return refused
}

// layerQuota is what one workspace gets of the profile's limits: those of the container are divided among all.
func (cr *creation) layerQuota() layer.Quota {
	share := func(limit int64) int64 {
		if limit == 0 {
			return 0
		}
		return max(limit/int64(len(cr.workspaceMounts)), 1)
	}
	limits := cr.policy.Profile.Limits
	q := layer.Quota{Bytes: share(limits.LayerBytes), Inodes: share(limits.LayerInodes)}
	for _, most := range []int64{cr.workspace.QuotaBytes, cr.workspace.MemoryBytes} {
		if most > 0 && (q.Bytes == 0 || most < q.Bytes) {
			q.Bytes = most
		}
	}
	return q
}

// layersStarted writes down whose layers they are, now that the first process has a number, and lets go of them.
func (cr *creation) layersStarted() error {
	if cr.layers == nil {
		return nil
	}
	if err := cr.layers.Started(cr.c.state.InitPID, cr.c.state.InitStart); err != nil {
		return err
	}
	cr.layers.Close()
	return nil
}

// endLayers notes that the container is gone: from then on its layers expire.
func (c *Container) endLayers() {
	if c.state.Layers == "" {
		return
	}
	l, err := layer.OpenRecent(c.state.Layers, c.id)
	if errors.Is(err, layer.ErrNotExist) {
		return
	}
	if err == nil {
		defer l.Close()
		if err = l.Settle(); err == nil {
			err = l.End()
		}
	}
	if err != nil {
		c.rt.opts.Warn(fmt.Sprintf("close the layers of container %q: %v", c.id, err))
	}
}
