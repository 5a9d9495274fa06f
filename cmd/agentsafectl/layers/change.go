package layers

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
)

func (a *app) undoCommand() *cobra.Command {
	return a.turnCommand("undo ID@N", "Take a committed transaction back, if nothing has touched its paths since", "undone", (*layer.Layers).Undo)
}

func (a *app) redoCommand() *cobra.Command {
	return a.turnCommand("redo ID@N", "Apply a transaction again that was undone", "committed again", (*layer.Layers).Redo)
}

func (a *app) turnCommand(use, short, done string, do func(*layer.Layers, int) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, n, to, err := reference(args[0])
			if err != nil {
				return err
			}
			if n == 0 || n != to {
				return fmt.Errorf("%q: want ID@N, with the number of one transaction from agentsafectl log", args[0])
			}
			l, err := a.open(id)
			if err != nil {
				return err
			}
			defer l.Close()
			if err := do(l, n); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "transaction %d is %s\n", n, done)
			return nil
		},
	}
}

func (a *app) checkpointCommand() *cobra.Command {
	return &cobra.Command{
		Use: "checkpoint ID [NAME]", Short: "Keep the state of a container's workspaces under a name, or list the names",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := a.open(args[0])
			if err != nil {
				return err
			}
			defer l.Close()
			if len(args) == 1 {
				w := table(c.OutOrStdout())
				fmt.Fprintln(w, "NAME\tTIME\tAFTER")
				for _, p := range l.Checkpoints {
					fmt.Fprintf(w, "%s\t%s\ttransaction %d\n", p.Name, p.Time.Local().Format(time.DateTime), p.After)
				}
				return w.Flush()
			}
			return l.SaveCheckpoint(args[1])
		},
	}
}

func (a *app) restoreCommand() *cobra.Command {
	return &cobra.Command{
		Use: "restore ID NAME", Short: "Make the workspaces what they were at a checkpoint; this can be undone",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := a.open(args[0])
			if err != nil {
				return err
			}
			defer l.Close()
			tx, err := l.Restore(args[1])
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "restored as transaction %d: %s, %d changes\n", tx.N, tx.Status, tx.Changes)
			return nil
		},
	}
}

func (a *app) layersCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "layers", Short: "List the layers that are kept on this host",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := layer.List(a.store())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			w := table(c.OutOrStdout())
			fmt.Fprintln(w, "ID\tCREATED\tSTATE\tTRANSACTIONS\tWORKSPACES")
			for _, i := range list {
				state := "running"
				if !i.Running {
					state = "ended"
				}
				if i.Keep {
					state += ", kept"
				}
				for j, ws := range i.Workspaces {
					if j == 0 {
						fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", show.SafeName(i.ID), i.Created.Local().Format(time.DateTime), state, i.Transactions, show.SafeName(ws))
						continue
					}
					fmt.Fprintf(w, "\t\t\t\t%s\n", show.SafeName(ws))
				}
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(a.keepCommand("keep ID", "Keep layers until they are released", true),
		a.keepCommand("release ID", "Let layers expire again", false), a.removeCommand(), a.expireCommand())
	return c
}

func (a *app) keepCommand(use, short string, keep bool) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			l, err := a.open(args[0])
			if err != nil {
				return err
			}
			defer l.Close()
			return l.SetKeep(keep)
		},
	}
}

func (a *app) removeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID", Short: "Remove the layers of a container that is gone: what was not promoted is lost", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := a.find(args[0])
			if err != nil {
				return err
			}
			return layer.Remove(a.store(), id, removing(c.ErrOrStderr()))
		},
	}
}

// removing tells a person how far a removal has come, if it takes more than a second.
func removing(w io.Writer) func(files int) {
	if !isTerminal(w) {
		return nil
	}
	began := time.Now()
	return func(files int) {
		if time.Since(began) > time.Second {
			fmt.Fprintf(w, "\r%d files removed ", files)
		}
	}
}

func (a *app) expireCommand() *cobra.Command {
	var age time.Duration
	c := &cobra.Command{
		Use: "gc", Short: "Remove the layers of containers that are gone for a day, unless they are kept", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			removed, err := layer.Expire(a.store(), age, removing(c.ErrOrStderr()))
			for _, id := range removed {
				fmt.Fprintln(c.OutOrStdout(), show.SafeName(id))
			}
			return err
		},
	}
	c.Flags().DurationVar(&age, "older-than", layer.DefaultExpiry, "how `long` the container must be gone")
	return c
}
