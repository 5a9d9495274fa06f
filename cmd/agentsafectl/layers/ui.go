package layers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/layers/ui"
	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
)

func (a *app) uiCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ui ID",
		Short: "Walk through the log of a container in the terminal: read diffs, undo, choose and promote",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if !isTerminal(os.Stdin) || !isTerminal(os.Stdout) {
				return errors.New("ui: standard input and output are no terminal (log, diff, undo and promote need none)")
			}
			l, err := a.open(args[0])
			if err != nil {
				return err
			}
			id := l.ID
			l.Close()
			m, err := ui.New(id, a.actions(args[0]), painter(os.Stdout) != nil)
			if err != nil {
				return err
			}
			return ui.Run(m)
		},
	}
}

// with opens the layers for one action.
func (a *app) with(id string, do func(l *layer.Layers) error) error {
	l, err := a.open(id)
	if err != nil {
		return err
	}
	defer l.Close()
	return do(l)
}

func (a *app) actions(id string) ui.Actions {
	return ui.Actions{
		Log: func() (log []layer.Transaction, err error) {
			err = a.with(id, func(l *layer.Layers) error {
				log = l.Transactions
				return nil
			})
			return log, err
		},
		Diff: func(n int) (lines []string, err error) {
			err = a.with(id, func(l *layer.Layers) error {
				lines, err = diffLines(l, n)
				return err
			})
			return lines, err
		},
		Turn: func(n int, undo bool) error {
			return a.with(id, func(l *layer.Layers) error {
				if undo {
					return l.Undo(n)
				}
				return l.Redo(n)
			})
		},
		Plan: func() (items []layer.Item, err error) {
			err = a.with(id, func(l *layer.Layers) error {
				plan, err := l.PlanPromotion(nil)
				if err == nil {
					items = plan.Items
				}
				return err
			})
			return items, err
		},
		Promote: func(paths []string) (text string, err error) {
			err = a.with(id, func(l *layer.Layers) error {
				plan, err := l.PlanPromotion(paths)
				if err != nil {
					return err
				}
				if err := a.recordedPromotion(l, plan, nil); err != nil {
					return explain(err, plan)
				}
				text = fmt.Sprintf("%d paths written", len(plan.Taken()))
				return a.record(l, plan, 0, nil)
			})
			return text, err
		},
	}
}

// diffLines are the lines of a diff, safe and coloured.
func diffLines(l *layer.Layers, n int) ([]string, error) {
	cmp, err := compare(l, n, n)
	if err != nil {
		return nil, err
	}
	defer cmp.Close()
	var b bytes.Buffer
	for i := range cmp.List {
		c := &cmp.List[i]
		s := show.Comparison{Old: c.Old, New: c.New, Changes: c.Changes}
		if err := s.Unified(&b, c.Workspace.Destination+"/", painter(os.Stdout)); err != nil {
			return nil, err
		}
	}
	if b.Len() == 0 {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n"), nil
}
