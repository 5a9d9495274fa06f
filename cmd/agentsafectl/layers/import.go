package layers

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/patch"
	"github.com/agentsafe/agentsafe/fs/layer/show"
)

func (a *app) importCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "import ID [FILE]",
		Short: "Apply a patch to a container's workspace, as a transaction that can be undone",
		Long: `Apply a patch to a container's workspace, as a transaction that can be undone.

FILE is a patch as git diff, git format-patch and agentsafectl export write it,
binary files included, or a unified diff; without it the standard input is read.
Its names are relative to the workspace behind their first component (a/, b/);
with several workspaces, to /. It applies as a whole or not at all, while the
container runs and after it is gone. The host's folder does not change.`,
		Example: `  git diff --binary | agentsafectl import agent
  agentsafectl export --format patch one | agentsafectl import another`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			name := "-"
			if len(args) > 1 {
				name = args[1]
			}
			files, err := readPatch(c.InOrStdin(), name)
			if err != nil {
				return err
			}
			l, err := a.open(args[0])
			if err != nil {
				return err
			}
			defer l.Close()
			tx, err := importPatch(l, name, files)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), tx)
			} else {
				fmt.Fprintf(c.OutOrStdout(), "imported as transaction %d: %s, %d changes\n", tx.N, tx.Status, tx.Changes)
			}
			if err == nil && tx.Status != layer.StatusCommitted {
				return fmt.Errorf("import: transaction %d is not committed (agentsafectl show %s@%d says why)", tx.N, args[0], tx.N)
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the transaction as JSON")
	return c
}

func readPatch(in io.Reader, name string) ([]patch.File, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("import: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, patch.MaxPatch+1))
	if err != nil {
		return nil, fmt.Errorf("import: read patch: %w", err)
	}
	files, err := patch.Parse(string(data))
	if err != nil {
		// Its names are in the error, and anybody's.
		return nil, fmt.Errorf("import: %s", show.Safe(err.Error()))
	}
	return files, nil
}

// importPatch makes a transaction of a patch.
func importPatch(l *layer.Layers, name string, files []patch.File) (*layer.Transaction, error) {
	where := func(p string) string {
		if p != "" && len(l.Workspaces) > 1 {
			return "/" + p
		}
		return p
	}
	return l.Edit([]string{"agentsafectl", "import", name}, func() ([]layer.Edit, error) {
		var out []layer.Edit
		gone := map[string]bool{}
		for i := range files {
			f := &files[i]
			f.Old, f.New = where(f.Old), where(f.New)
			if f.Old != f.New && !f.Copy {
				gone[f.Old] = true
			}
		}
		for i := range files {
			f := &files[i]
			edits, err := patchOne(l, f, gone)
			if err != nil {
				named := f.New
				if named == "" {
					named = f.Old
				}
				return nil, fmt.Errorf("import %s: %w", show.SafeName(named), err)
			}
			out = append(out, edits...)
		}
		return out, nil
	})
}

// patchOne says what one file of a patch makes of the workspace. gone are the paths that the patch empties.
func patchOne(l *layer.Layers, f *patch.File, gone map[string]bool) ([]layer.Edit, error) {
	old := &layer.Content{}
	if f.Old != "" {
		var err error
		if old, err = l.Read(f.Old, patch.MaxFile); err != nil {
			return nil, err
		}
		if old == nil {
			return nil, fmt.Errorf("%w: there is no such file", patch.ErrNoMatch)
		}
		if f.OldMode != 0 && old.Symlink != (f.OldMode == patch.ModeSymlink) {
			return nil, fmt.Errorf("%w: it is of another kind", patch.ErrNoMatch)
		}
	}
	if f.New != "" && f.New != f.Old && !gone[f.New] {
		if there, err := l.Read(f.New, patch.MaxFile); err != nil || there != nil {
			return nil, errors.Join(err, fmt.Errorf("%w: there is something already", patch.ErrNoMatch))
		}
	}
	data, err := f.Apply(old.Data)
	if err != nil {
		return nil, err
	}
	var out []layer.Edit
	if f.Old != "" && f.Old != f.New && !f.Copy {
		out = append(out, layer.Edit{Path: f.Old})
	}
	if f.New == "" {
		return out, nil
	}
	now := &layer.Content{Symlink: old.Symlink, Executable: old.Executable, Data: data}
	if f.NewMode != 0 {
		now.Symlink, now.Executable = f.NewMode == patch.ModeSymlink, f.NewMode == patch.ModeExecutable
	}
	return append(out, layer.Edit{Path: f.New, Content: now, From: f.Old}), nil
}
