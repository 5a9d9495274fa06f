package layers

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
)

func (a *app) requestsCommand() *cobra.Command {
	var asJSON bool
	var reject int
	c := &cobra.Command{
		Use:   "requests [ID]",
		Short: "List what tasks ask to have promoted",
		Long: `List what tasks ask to have promoted, of one container or of all. A request
grants nothing. agentsafectl promote --request N ID shows what it would write with
--dry-run, and writes it without; --reject N turns it down.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if reject > 0 {
				if len(args) == 0 {
					return fmt.Errorf("requests --reject: of which container?")
				}
				return a.reject(args[0], reject)
			}
			list, err := a.requests(args)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			return writeRequests(c.OutOrStdout(), list)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().IntVar(&reject, "reject", 0, "turn `request` N down")
	return c
}

// containerRequest is a request with whose it is.
type containerRequest struct {
	Container string `json:"container"`
	layer.Request
}

func (a *app) requests(args []string) ([]containerRequest, error) {
	var ids []string
	if len(args) > 0 {
		ids = args
	} else {
		list, err := layer.List(a.store())
		if err != nil {
			return nil, err
		}
		for _, i := range list {
			ids = append(ids, i.ID)
		}
	}
	out := []containerRequest{}
	for _, id := range ids {
		l, err := a.open(id)
		if err != nil {
			return nil, err
		}
		list, err := l.Requests()
		l.Close()
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			out = append(out, containerRequest{id, r})
		}
	}
	return out, nil
}

func writeRequests(out io.Writer, list []containerRequest) error {
	w := table(out)
	fmt.Fprintln(w, "CONTAINER\tREQUEST\tTIME\tBY\tSTATE\tPATHS\tMESSAGE")
	for _, r := range list {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%d\t%s\n", show.SafeName(r.Container), r.N, r.Created.Local().Format(time.DateTime),
			show.SafeName(r.By), r.State, r.Items, commandText([]string{r.Message}, 80))
	}
	return w.Flush()
}

func (a *app) reject(id string, n int) error {
	l, err := a.open(id)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Decide(n, layer.RequestRejected)
}

// requested takes paths and digest of a promotion from a request that waits.
func (f *promoteFlags) requested(l *layer.Layers, paths []string) ([]string, error) {
	if f.request == 0 {
		return paths, nil
	}
	r, err := l.Request(f.request)
	if err != nil {
		return nil, err
	}
	switch {
	case len(paths) > 0:
		return nil, fmt.Errorf("promote --request %d: the request says which paths", f.request)
	case r.State != layer.RequestOpen:
		return nil, fmt.Errorf("promote: request %d was %s at %s", r.N, r.State, r.Decided.Format(time.RFC3339))
	}
	if f.digest == "" {
		f.digest = r.Digest
	}
	return r.Paths, nil
}
