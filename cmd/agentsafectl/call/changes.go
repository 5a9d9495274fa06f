package call

import (
	"errors"
	"path"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// MaxFiles bounds the changed paths in one result; more are counted.
const MaxFiles = 200

// FileChange is a path that was changed, as the container sees it, with what can't be seen in its name as escapes.
type FileChange struct {
	Path string    `json:"path"`
	Op   tree.Op   `json:"op"` // add, modify, delete, meta
	Kind tree.Kind `json:"kind"`
	Size int64     `json:"size"` // bytes afterwards
}

// FileConflict is a path that others have changed at the same time.
type FileConflict struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// ErrNoLayers says that a container's workspaces are not overlaid: what it writes is on the host at once.
var ErrNoLayers = errors.New("the workspace is written directly (filesystem.workspace.mode of the profile), so nothing is kept to list, take back or promote")

// Layers opens the layers of a container; the caller closes them. The error is ErrNoLayers if it has none.
func Layers(c *container.Container) (*layer.Layers, error) {
	store := c.State().Layers
	if store == "" {
		return nil, ErrNoLayers
	}
	l, err := layer.Open(store, c.ID())
	if err != nil {
		return nil, err
	}
	if err := l.Settle(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Changes lists the paths of a comparison: the first MaxFiles, and how many more there are.
func Changes(cmp *layer.Comparison) (list []FileChange, omitted int) {
	list = []FileChange{}
	for i := range cmp.List {
		for j := range cmp.List[i].Changes {
			ch := &cmp.List[i].Changes[j]
			if ch.Op == tree.Times {
				continue
			}
			if len(list) == MaxFiles {
				omitted++
				continue
			}
			list = append(list, FileChange{
				show.SafeName(path.Join(cmp.List[i].Workspace.Destination, ch.Path)), ch.Op, ch.Kind, ch.New.Size,
			})
		}
	}
	return list, omitted
}

// addChanges looks up the transaction of a process and lists what it changed.
func (r *Result) addChanges(c *container.Container, pid int, finished func(int) *layer.Transaction) error {
	if c.State().Layers == "" {
		return nil
	}
	var tx *layer.Transaction
	if finished != nil {
		if tx = finished(pid); tx == nil {
			return nil
		}
		r.describe(tx)
		if tx.Changes == 0 {
			return nil
		}
	}
	l, err := Layers(c)
	if err != nil {
		return err
	}
	defer l.Close()
	for i := len(l.Transactions) - 1; i >= 0 && tx == nil; i-- {
		if l.Transactions[i].PID == pid {
			tx = &l.Transactions[i]
			r.describe(tx)
		}
	}
	if tx == nil || tx.Changes == 0 {
		return nil
	}
	cmp, err := l.CompareRange(tx.N, tx.N)
	if err != nil {
		return err
	}
	defer cmp.Close()
	r.FilesChanged, r.FilesOmitted = Changes(cmp)
	return nil
}

func (r *Result) describe(tx *layer.Transaction) {
	r.Transaction, r.Status = tx.N, tx.Status
	for _, c := range tx.Conflicts[:min(len(tx.Conflicts), MaxFiles)] {
		r.Conflicts = append(r.Conflicts, FileConflict{show.SafeName(path.Join(c.Workspace, c.Path)), show.Safe(c.Reason)})
	}
}
