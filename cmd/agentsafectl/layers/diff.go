package layers

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/ps"
	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
	"github.com/agentsafe/agentsafe/runtime/container"
)

func (a *app) diffCommand() *cobra.Command {
	var asJSON, names, stat, root bool
	c := &cobra.Command{
		Use:   "diff ID[@N[..M]]",
		Short: "Show what a task changed: against the host, or in transactions N to M",
		Long: `Show what a task changed.

Without a number: how its workspaces differ from the folders of the host, which is
what promote would write. With one: what transaction N did. With a range: what N
to M did together. With --rootfs: what the container has changed in its own root file
system, by the engine's layer. Control characters, bidirectional marks and invisible
characters in names and contents are shown as escapes.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cmp, closeAll, err := a.compareArg(args[0], root)
			if err != nil {
				return err
			}
			defer closeAll()
			switch out := c.OutOrStdout(); {
			case asJSON:
				return printJSON(out, pathChanges(cmp))
			case names:
				return writeNames(out, cmp)
			case stat:
				return writeStat(out, cmp)
			default:
				return writeDiff(out, cmp)
			}
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON: paths, kinds, modes, owners, sizes")
	c.Flags().BoolVar(&names, "name-only", false, "print the changed paths alone")
	c.Flags().BoolVar(&root, "rootfs", false, "show what the container has changed in its root file system")
	c.Flags().BoolVar(&stat, "stat", false, "print a table of paths and sizes")
	c.MarkFlagsMutuallyExclusive("json", "name-only", "stat")
	return c
}

// compareArg opens what an argument names: ID, ID@N, ID@N..M; or with root the root file system of a container.
func (a *app) compareArg(arg string, root bool) (cmp *layer.Comparison, closeAll func(), err error) {
	if root {
		cmp, err = a.compareRoot(arg)
		if err != nil {
			return nil, nil, err
		}
		return cmp, cmp.Close, nil
	}
	id, from, to, err := reference(arg)
	if err != nil {
		return nil, nil, err
	}
	l, err := a.open(id)
	if err != nil {
		return nil, nil, err
	}
	if cmp, err = compare(l, from, to); err != nil {
		l.Close()
		return nil, nil, err
	}
	return cmp, func() { cmp.Close(); l.Close() }, nil
}

// compareRoot finds a container by its id, or the beginning of it, and what its engine has mounted as its root.
func (a *app) compareRoot(id string) (*layer.Comparison, error) {
	list, err := ps.Find([]string{*a.state})
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(e ps.Entry) bool { return id == "" || !strings.HasPrefix(e.ID, id) })
	if len(list) != 1 {
		return nil, fmt.Errorf("diff --rootfs %q: %d containers have an id that begins so (agentsafectl ps lists them); of one that is gone its engine knows the layer", id, len(list))
	}
	if e := list[0]; e.PID > 0 && e.Status != string(container.StatusStopped) {
		return layer.CompareRoot(fmt.Sprintf("/proc/%d/mountinfo", e.PID), "/")
	}
	rt, err := container.Open(container.Options{Root: list[0].Root})
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	c, err := rt.Load(list[0].ID)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return layer.CompareRoot("/proc/self/mountinfo", c.State().Rootfs)
}

func compare(l *layer.Layers, from, to int) (*layer.Comparison, error) {
	if from == 0 {
		return l.CompareHost()
	}
	return l.CompareRange(from, to)
}

// pathChange is a change under its path in the container.
type pathChange struct {
	Workspace string `json:"workspace"`
	tree.Change
}

func pathChanges(cmp *layer.Comparison) []pathChange {
	out := []pathChange{}
	for i := range cmp.List {
		for _, ch := range cmp.List[i].Changes {
			if ch.Op != tree.Times {
				out = append(out, pathChange{cmp.List[i].Workspace.Destination, ch})
			}
		}
	}
	return out
}

// signs of the operations, as git status writes them.
func sign(op tree.Op) string {
	switch op {
	case tree.Add:
		return "A"
	case tree.Delete:
		return "D"
	case tree.Meta:
		return "m"
	default:
		return "M"
	}
}

func writeNames(out io.Writer, cmp *layer.Comparison) error {
	w := bufio.NewWriter(out)
	for _, c := range pathChanges(cmp) {
		slash := ""
		if c.Kind == tree.Dir {
			slash = "/"
		}
		fmt.Fprintf(w, "%s %s%s\n", sign(c.Op), show.SafeName(c.Workspace+"/"+c.Path), slash)
	}
	return w.Flush()
}

func writeStat(out io.Writer, cmp *layer.Comparison) error {
	w := table(out)
	fmt.Fprintln(w, "OP\tKIND\tBEFORE\tAFTER\tMODE\tOWNER\tPATH")
	for _, c := range pathChanges(cmp) {
		before, after, mode, owner := "-", "-", "-", "-"
		if c.Op != tree.Add {
			before = bytesText(c.Old.Size)
		}
		if c.Op != tree.Delete {
			after, mode, owner = bytesText(c.New.Size), fmt.Sprintf("%04o", c.New.Mode), fmt.Sprintf("%d:%d", c.New.UID, c.New.GID)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", sign(c.Op), c.Kind, before, after, mode, owner, show.SafeName(c.Workspace+"/"+c.Path))
	}
	return w.Flush()
}

func writeDiff(out io.Writer, cmp *layer.Comparison) error {
	w := bufio.NewWriter(out)
	for i := range cmp.List {
		c := &cmp.List[i]
		s := show.Comparison{Old: c.Old, New: c.New, Changes: c.Changes}
		if err := s.Unified(w, c.Workspace.Destination+"/", painter(out)); err != nil {
			return err
		}
	}
	return w.Flush()
}
