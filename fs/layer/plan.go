package layer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Item is one path of a promotion.
type Item struct {
	Workspace string `json:"workspace"` // destination in the container
	tree.Change
	// Flag says why it is left out unless it is named; Conflict why it can't be written; Left that it is left out.
	Flag     string `json:"flag,omitempty"`
	Conflict string `json:"conflict,omitempty"`
	Left     string `json:"left,omitempty"`
	// Merged says that a text is written in which the host's changes are, too.
	Merged bool `json:"merged,omitempty"`

	w      *Workspace
	merged []byte
}

// PromotionPlan is what a promotion would write to the host.
type PromotionPlan struct {
	Items []Item `json:"items"`
	// Digest is over what would be written: paths, kinds, modes and contents.
	Digest string `json:"digest"`
}

// Taken returns the items that are neither left out nor in conflict.
func (p *PromotionPlan) Taken() []Item {
	return slices.DeleteFunc(slices.Clone(p.Items), func(i Item) bool { return i.Left != "" || i.Conflict != "" })
}

// Conflicts returns the paths that the host has changed since the task began.
func (p *PromotionPlan) Conflicts() []Conflict {
	var out []Conflict
	for _, i := range p.Items {
		if i.Conflict != "" && i.Left == "" {
			out = append(out, Conflict{i.Workspace, i.Path, i.Conflict})
		}
	}
	return out
}

// Diff lists how the workspaces differ from the host's folders: what a promotion of everything would write.
func (l *Layers) Diff() ([]Item, error) {
	var out []Item
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		list, err := l.baseChanges(w)
		if err != nil {
			return nil, err
		}
		for _, c := range list {
			if c.Op != tree.Times {
				out = append(out, Item{Workspace: w.Destination, Change: c, w: w})
			}
		}
	}
	return out, nil
}

func (l *Layers) baseChanges(w *Workspace) ([]tree.Change, error) {
	host, err := l.lower(w)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	upper, closeUpper, err := l.upper(w, upperDir(w))
	if err != nil {
		return nil, err
	}
	defer closeUpper()
	return tree.List(upper, tree.NewRoot(host), tree.ListOptions{})
}

// PlanPromotion says what a promotion of the paths would write, and what is in its way. Paths are as the container sees
// them, absolute or relative to the only workspace; each covers what is below it; none means everything. It changes
// nothing.
func (l *Layers) PlanPromotion(paths []string) (*PromotionPlan, error) {
	wanted, err := l.locate(paths)
	if err != nil {
		return nil, err
	}
	items, err := l.Diff()
	if err != nil {
		return nil, err
	}
	plan := &PromotionPlan{}
	found, gone := map[string]bool{}, map[string]bool{}
	for i := range items {
		if items[i].Op == tree.Delete {
			gone[items[i].w.Name] = true
		}
	}
	for _, item := range items {
		named, covered := match(wanted[item.w.Name], item.Path, found, item.w)
		if len(paths) > 0 && !covered {
			continue
		}
		if err := l.judge(&item, named || covered && l.Flagged, gone[item.w.Name]); err != nil {
			return nil, err
		}
		plan.Items = append(plan.Items, item)
	}
	for name, list := range wanted {
		for _, p := range list {
			if !found[name+"/"+p] {
				return nil, fmt.Errorf("%q: the task has changed nothing there", p)
			}
		}
	}
	l.addParents(plan, items)
	plan.Digest, err = l.digest(plan)
	return plan, err
}

// locate turns paths of the container into paths of workspaces.
func (l *Layers) locate(paths []string) (map[string][]string, error) {
	out := map[string][]string{}
	for _, p := range paths {
		w, rest, err := l.resolve(p)
		if err != nil {
			return nil, err
		}
		out[w.Name] = append(out[w.Name], rest)
	}
	return out, nil
}

// resolve finds the workspace of a path of the container, and the path in it.
func (l *Layers) resolve(p string) (*Workspace, string, error) {
	if !path.IsAbs(p) {
		if len(l.Workspaces) != 1 {
			return nil, "", fmt.Errorf("%q: the container has %d workspaces, so write the path as the container sees it", p, len(l.Workspaces))
		}
		return &l.Workspaces[0], strings.TrimPrefix(path.Clean("/"+p), "/"), nil
	}
	var best *Workspace
	clean := path.Clean(p)
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		if (clean == w.Destination || strings.HasPrefix(clean, strings.TrimSuffix(w.Destination, "/")+"/")) &&
			(best == nil || len(w.Destination) > len(best.Destination)) {
			best = w
		}
	}
	if best == nil {
		return nil, "", fmt.Errorf("%q is in none of the container's workspaces", p)
	}
	return best, strings.TrimPrefix(strings.TrimPrefix(clean, best.Destination), "/"), nil
}

// match reports whether a path is covered by one that was asked for, and whether it was named itself.
func match(wanted []string, p string, found map[string]bool, w *Workspace) (named, covered bool) {
	for _, want := range wanted {
		if p == want || want == "" || strings.HasPrefix(p, want+"/") {
			covered = true
			named = named || p == want || w.surface(want) != ""
			found[w.Name+"/"+want] = true
		}
	}
	return named, covered
}

// judge fills in why an item can't or won't be written. renamed says that a file of the host's may have got another name.
func (l *Layers) judge(i *Item, named, renamed bool) error {
	upper, closeUpper, err := l.upper(i.w, upperDir(i.w))
	if err != nil {
		return err
	}
	defer closeUpper()
	host, err := i.w.host()
	if err != nil {
		return err
	}
	defer host.Close()
	switch {
	case i.Kind == tree.Dir && (i.Op == tree.Meta || i.Op == tree.Times):
		i.Left = "owner and mode of a folder of the host stay"
	case i.Op != tree.Delete && i.Kind != tree.Dir && i.Kind != tree.File && i.Kind != tree.Symlink:
		i.Left = "a " + string(i.Kind) + " is never promoted"
	case i.Op == tree.Meta && i.Kind == tree.Symlink, i.Op == tree.Meta && i.Old.Mode&0o777 == i.New.Mode&0o777:
		i.Left = "owner, attributes and set-id bits are never promoted"
	}
	if i.Flag = flag(i.w, upper, &i.Change); i.Flag != "" && !named && i.Left == "" {
		i.Left = i.Flag + ": name it to promote it"
	}
	if i.Conflict, err = l.hostChanged(i, tree.NewRoot(host), renamed); err != nil || i.Conflict == "" {
		return err
	}
	return l.merge(i, upper, tree.NewRoot(host))
}

// hostChanged says, in words, that the host has changed a path since the layer began; "" if not.
func (l *Layers) hostChanged(i *Item, host tree.Root, renamed bool) (string, error) {
	st, err := host.Lstat(i.Path)
	switch {
	case tree.Missing(err) && i.CopiedUp && i.Kind != tree.Dir && !renamed:
		return "it was deleted on the host since", nil
	case tree.Missing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("%q: %w", i.Path, err)
	}
	if i.Kind == tree.Dir && i.Op != tree.Delete && host.IsDir(i.Path) {
		return "", nil
	}
	if stamp, ok := l.Promoted[i.w.Name+"/"+i.Path]; ok && stamp == (Stamp{st.Ino, st.Ctim.Nano()}) {
		return "", nil
	}
	if i.w.Copied {
		return l.copyChanged(i, host)
	}
	changed, err := tree.ChangedSince(host, i.Path, i.w.Since)
	if err != nil || !changed {
		return "", err
	}
	return "it was changed on the host since", nil
}

// addParents adds the directories that a chosen path needs and that were not asked for.
func (l *Layers) addParents(plan *PromotionPlan, all []Item) {
	has := map[string]bool{}
	for _, i := range plan.Items {
		has[i.w.Name+"/"+i.Path] = true
	}
	var parents []Item
	for _, dir := range all {
		if dir.Kind != tree.Dir || dir.Op == tree.Delete || dir.Op == tree.Meta || has[dir.w.Name+"/"+dir.Path] {
			continue
		}
		if slices.ContainsFunc(plan.Items, func(i Item) bool {
			return i.w == dir.w && i.Op != tree.Delete && i.Left == "" && strings.HasPrefix(i.Path, dir.Path+"/")
		}) {
			parents = append(parents, dir)
		}
	}
	plan.Items = append(parents, plan.Items...)
}

// digest hashes what would be written.
func (l *Layers) digest(plan *PromotionPlan) (string, error) {
	h := sha256.New()
	for _, i := range plan.Taken() {
		if !i.writes() {
			continue
		}
		upper, closeUpper, err := l.upper(i.w, upperDir(i.w))
		if err == nil {
			err = i.hash(h, upper, i.Path)
			closeUpper()
		}
		if err != nil {
			return "", fmt.Errorf("hash %q: %w", i.Path, err)
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// writes reports whether a promotion of the item does anything: a directory that is there stays as it is.
func (i *Item) writes() bool { return i.Op == tree.Delete || i.Kind != tree.Dir || i.Was != tree.Dir }

// hash adds what would be written, with the content that root has at a path.
func (i *Item) hash(h io.Writer, root tree.Root, at string) error {
	fmt.Fprintf(h, "%q %q %s %s %o\n", i.Workspace, i.Path, i.Op, i.Kind, i.New.Mode&0o777)
	switch {
	case i.Op == tree.Delete:
		return nil
	case i.Merged:
		_, err := h.Write(i.merged)
		fmt.Fprintf(h, "\n%d\n", len(i.merged))
		return err
	}
	return hashFile(h, root, i.Kind, at)
}

// errLeft is a promotion that would write nothing.
var errLeft = errors.New("nothing to promote")
