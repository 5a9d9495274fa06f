package layers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

type promoteFlags struct {
	dryRun, interactive, asJSON bool
	merge, flagged              bool
	digest, after               string
	request                     int
}

func (a *app) promoteCommand() *cobra.Command {
	var f promoteFlags
	c := &cobra.Command{
		Use:   "promote ID [PATH...]",
		Short: "Write what a task changed to the folders of the host",
		Long: `Write what a task changed to the folders of the host: as the folder's owner,
each file at once, all of it or nothing. Paths are as the container sees them, or
relative to its only workspace; each covers what is below it; none means
everything.

Nothing is written where the host has changed a path since the task began. Files
that run on the host by themselves (git's directory, hooks, CI files, editor
tasks, agents' settings, package scripts) and symlinks that lead out of the folder
are left out unless they are named. Set-id bits, owners, devices, FIFOs and
sockets are never written.`,
		Example: `  agentsafectl promote --dry-run 4f1c
  agentsafectl promote 4f1c src docs/README.md
  agentsafectl promote 4f1c package.json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.promote(c, &f, args[0], args[1:]) },
	}
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be written, and why what not")
	c.Flags().BoolVarP(&f.interactive, "interactive", "i", false, "show each change and ask")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print the plan as JSON")
	c.Flags().BoolVar(&f.merge, "merge", false, "where the host has changed other lines of a text, write both changes")
	c.Flags().BoolVar(&f.flagged, "flagged", false, "write what is flagged below the given paths, too: node_modules, .vscode")
	c.Flags().StringVar(&f.after, "after", "", "promote only what a `check` has passed on: a command of the shell, which is run in the container if it has not been")
	c.Flags().StringVar(&f.digest, "digest", "", "refuse unless the plan has this `digest` (of an earlier --dry-run)")
	c.Flags().IntVar(&f.request, "request", 0, "write what `request` N asks for (agentsafectl requests)")
	c.MarkFlagsMutuallyExclusive("request", "interactive")
	c.MarkFlagsMutuallyExclusive("dry-run", "interactive")
	c.MarkFlagsMutuallyExclusive("json", "interactive")
	return c
}

func (a *app) promote(c *cobra.Command, f *promoteFlags, id string, paths []string) error {
	var check *layer.Check
	if f.after != "" {
		var err error
		if check, err = a.after(c.Context(), c.ErrOrStderr(), id, f.after); err != nil {
			return err
		}
	}
	l, err := a.open(id)
	if err != nil {
		return err
	}
	defer l.Close()
	if f.flagged && len(paths) == 0 && f.request == 0 {
		return errors.New("promote --flagged: name the folders: what is flagged is never written by a bare promote")
	}
	l.Flagged = f.flagged
	if f.merge {
		l.Merge = show.Merge
	}
	if paths, err = f.requested(l, paths); err != nil {
		return err
	}
	plan, err := l.PlanPromotion(paths)
	if err != nil {
		return err
	}
	if f.interactive {
		if plan, err = choose(c, l, plan); err != nil {
			return err
		}
	}
	if f.digest != "" && f.digest != plan.Digest {
		return fmt.Errorf("promote: what would be written has the digest %s, not the one that was asked for: look at it again", plan.Digest)
	}
	if !f.dryRun {
		if err := a.recordedPromotion(l, plan, check); err != nil {
			return explain(err, plan)
		}
		if err := a.record(l, plan, f.request, check); err != nil {
			fmt.Fprintln(os.Stderr, "agentsafectl: note: it is written, and not in the evidence:", err)
		}
		if f.request != 0 {
			if err := l.Decide(f.request, layer.RequestApproved); err != nil {
				return err
			}
		}
	}
	if f.asJSON {
		return printJSON(c.OutOrStdout(), struct {
			*layer.PromotionPlan
			Written bool `json:"written"`
		}{plan, !f.dryRun})
	}
	return writePlan(c.OutOrStdout(), plan, f.dryRun)
}

// explain lists all conflicts.
func explain(err error, plan *layer.PromotionPlan) error {
	if _, ok := errors.AsType[*layer.ConflictError](err); !ok {
		return err
	}
	var b strings.Builder
	for _, c := range plan.Conflicts() {
		fmt.Fprintf(&b, "\n  %s: %s", show.SafeName(c.Workspace+"/"+c.Path), c.Reason)
	}
	return fmt.Errorf("promote: nothing was written, because the host has changed the same paths:%s", b.String())
}

func writePlan(out io.Writer, plan *layer.PromotionPlan, dryRun bool) error {
	w := table(out)
	written, left := 0, 0
	surfaces := map[string]int{}
	for k := range plan.Items {
		surfaces[surface(&plan.Items[k])]++
	}
	said := map[string]int{}
	for k := range plan.Items {
		i := &plan.Items[k]
		name := show.SafeName(i.Workspace + "/" + i.Path)
		switch {
		case i.Left != "":
			left++
			at := surface(i)
			said[at]++
			switch more := surfaces[at] - fewLeft; {
			case at == "" || more <= 1 || said[at] <= fewLeft:
				fmt.Fprintf(w, "left\t%s\t%s: %s\n", sign(i.Op), name, i.Left)
			case said[at] == fewLeft+1:
				fmt.Fprintf(w, "left\t\t%s: %d more: %s (--json lists them)\n", show.SafeName(at), more, i.Left)
			}
		case i.Conflict != "":
			fmt.Fprintf(w, "conflict\t%s\t%s: %s\n", sign(i.Op), name, i.Conflict)
		default:
			written++
			word := "written"
			if dryRun {
				word = "would write"
			}
			if i.Merged {
				name += " (merged with the host's changes)"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", word, sign(i.Op), name)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if dryRun {
		fmt.Fprintf(out, "%d paths, %d left out; digest %s\n", written, left, plan.Digest)
		return nil
	}
	fmt.Fprintf(out, "%d paths written, %d left out\n", written, left)
	return nil
}

// fewLeft is how many paths of one execution surface are listed: a commit of git's makes hundreds.
const fewLeft = 3

// surface is the file or directory for which an item is left out, with the workspace in front; "" for another reason.
func surface(i *layer.Item) string {
	if i.Left == "" {
		return ""
	}
	parts := strings.Split(i.Path, "/")
	for n := range parts {
		if p := strings.Join(parts[:n+1], "/"); layer.Surface(p) != "" {
			return i.Workspace + "/" + p
		}
	}
	return ""
}

// choose asks for each change, and plans the ones that were taken anew, as named.
func choose(c *cobra.Command, l *layer.Layers, plan *layer.PromotionPlan) (*layer.PromotionPlan, error) {
	if !isTerminal(os.Stdin) {
		return nil, errors.New("promote --interactive: the standard input is no terminal")
	}
	in, out := bufio.NewReader(os.Stdin), c.OutOrStdout()
	cmp, err := l.CompareHost()
	if err != nil {
		return nil, err
	}
	defer cmp.Close()
	var paths []string
	for _, i := range plan.Items {
		if i.Conflict != "" || i.Kind == tree.Dir && i.Op != tree.Delete || i.Left != "" && i.Flag == "" {
			continue
		}
		if err := showOne(out, cmp, &i); err != nil {
			return nil, err
		}
		if i.Flag != "" {
			fmt.Fprintln(out, "attention:", i.Flag)
		}
		fmt.Fprint(out, "promote this? [y/N/q] ")
		answer, err := in.ReadString('\n')
		if err != nil || strings.HasPrefix(answer, "q") {
			return nil, errors.New("promote: stopped; nothing was written")
		}
		if strings.HasPrefix(strings.ToLower(answer), "y") {
			paths = append(paths, i.Workspace+"/"+i.Path)
		}
	}
	if len(paths) == 0 {
		return nil, errors.New("promote: nothing was chosen")
	}
	return l.PlanPromotion(paths)
}

func showOne(out io.Writer, cmp *layer.Comparison, i *layer.Item) error {
	for j := range cmp.List {
		c := &cmp.List[j]
		if c.Workspace.Destination != i.Workspace {
			continue
		}
		s := show.Comparison{Old: c.Old, New: c.New, Changes: []tree.Change{i.Change}}
		return s.Unified(out, i.Workspace+"/", painter(out))
	}
	return nil
}
