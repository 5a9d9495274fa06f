package layers

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
)

func (a *app) logCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "log ID",
		Short: "List the transactions of a container: what each exec changed",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := a.open(args[0])
			if err != nil {
				return err
			}
			defer l.Close()
			if asJSON {
				return printJSON(c.OutOrStdout(), l.Transactions)
			}
			return writeLog(c.OutOrStdout(), l)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func writeLog(out io.Writer, l *layer.Layers) error {
	w := table(out)
	fmt.Fprintln(w, "N\tSTARTED\tTOOK\tEXIT\tSTATUS\tCHANGES\tSIZE\tCOMMAND")
	for i := range l.Transactions {
		t := &l.Transactions[i]
		took, exit := "-", "-"
		if !t.Ended.IsZero() {
			took = t.Ended.Sub(t.Started).Round(time.Millisecond).String()
		}
		if t.Exit != nil {
			exit = strconv.Itoa(*t.Exit)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", t.N, t.Started.Local().Format(time.DateTime), took, exit, t.Status,
			t.Changes, bytesText(t.Bytes), commandText(t.Command, 60))
	}
	return w.Flush()
}

// commandText is a command on one line, cut at a width.
func commandText(argv []string, width int) string {
	s := show.SafeName(strings.Join(argv, " "))
	if len(s) > width {
		s = strings.ToValidUTF8(s[:width-3], "") + "..."
	}
	return s
}

func (a *app) showCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show ID@N",
		Short: "Show one transaction: its command, its changed paths, its conflicts",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, n, _, err := reference(args[0])
			if err != nil {
				return err
			}
			l, err := a.open(id)
			if err != nil {
				return err
			}
			defer l.Close()
			for i := range l.Transactions {
				if l.Transactions[i].N == n {
					return showTransaction(c.OutOrStdout(), l, &l.Transactions[i], asJSON)
				}
			}
			return fmt.Errorf("%q: no such transaction; write ID@N with a number from agentsafectl log", args[0])
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func showTransaction(out io.Writer, l *layer.Layers, t *layer.Transaction, asJSON bool) error {
	cmp, err := l.CompareRange(t.N, t.N)
	if err != nil {
		return err
	}
	defer cmp.Close()
	if asJSON {
		return printJSON(out, struct {
			*layer.Transaction
			Paths []pathChange `json:"paths"`
		}{t, pathChanges(cmp)})
	}
	fmt.Fprintf(out, "transaction %d: %s\ncommand  %s\nstarted  %s\n", t.N, t.Status, commandText(t.Command, 1<<20), t.Started.Local().Format(time.RFC3339))
	if t.Exit != nil {
		fmt.Fprintf(out, "exit     %d after %s\n", *t.Exit, t.Ended.Sub(t.Started).Round(time.Millisecond))
	}
	if t.Reason != "" {
		fmt.Fprintf(out, "refused  %s\n", show.Safe(t.Reason))
	}
	for _, c := range t.Conflicts {
		fmt.Fprintf(out, "conflict %s: %s\n", show.SafeName(c.Workspace+"/"+c.Path), c.Reason)
	}
	fmt.Fprintln(out)
	return writeNames(out, cmp)
}
