package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// stateOutput is what runc prints for state and list: the runtime-spec's state with additions that engines read.
type stateOutput struct {
	OCIVersion  string            `json:"ociVersion"`
	ID          string            `json:"id"`
	PID         int               `json:"pid"`
	Status      container.Status  `json:"status"`
	Bundle      string            `json:"bundle"`
	Rootfs      string            `json:"rootfs"`
	Created     time.Time         `json:"created"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Owner       string            `json:"owner"`
	// End is why a limit of the profile has ended the container, or which it has met; runc has nothing like it.
	End *container.End `json:"end,omitempty"`
}

func describe(c *container.Container) (*stateOutput, error) {
	status, err := c.Status()
	if err != nil {
		return nil, err
	}
	s := c.State()
	out := &stateOutput{
		OCIVersion: s.OCIVersion, ID: c.ID(), PID: s.InitPID, Status: status, Bundle: s.Bundle, Rootfs: s.Rootfs,
		Created: s.Created, Annotations: annotate(s), Owner: c.Owner(),
	}
	if status == container.StatusStopped {
		out.PID = 0
	}
	if s.SupervisorPID != 0 {
		if out.End, err = c.End(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (a *app) state(_ context.Context, args []string) error {
	id, err := parseID(newFlags("state", "ID"), args)
	if err != nil {
		return err
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	out, err := describe(c)
	if err != nil {
		return err
	}
	return printJSON(out, "  ")
}

func printJSON(v any, indent string) error {
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", indent)
	return enc.Encode(v)
}

func (a *app) list(_ context.Context, args []string) error {
	fs := newFlags("list", "")
	format := fs.String("format", "table", "table or json")
	fs.StringVar(format, "f", "table", "table or json")
	quiet := fs.Bool("quiet", false, "print ids only")
	fs.BoolVar(quiet, "q", false, "print ids only")
	if err := fs.Parse(args); err != nil {
		return err
	}
	rt, err := a.runtime()
	if err != nil {
		return err
	}
	ids, err := rt.List()
	if err != nil {
		return err
	}
	var all []*stateOutput // nil prints as null, as from runc
	for _, id := range ids {
		out, err := a.describeID(rt, id)
		if err != nil {
			// A container that is being created or deleted at this moment, or one that a crash has left.
			a.log.warn(fmt.Sprintf("list: %v", err))
			continue
		}
		all = append(all, out)
	}
	switch {
	case *quiet:
		for _, s := range all {
			fmt.Println(s.ID)
		}
		return nil
	case *format == "json":
		return printJSON(all, "")
	case *format == "table":
		return printTable(all)
	default:
		return fmt.Errorf("unknown format %q, want table or json", *format)
	}
}

// annotate adds to the spec's annotations under which policy the container runs.
func annotate(s *container.State) map[string]string {
	out := maps.Clone(s.Annotations)
	if out == nil {
		out = map[string]string{}
	}
	out["dev.agentsafe.profile"], out["dev.agentsafe.policy"] = s.Profile, s.PolicyHash
	if s.Enforcement != container.EnforceAll {
		out["dev.agentsafe.enforcement"] = string(s.Enforcement)
	}
	if s.Network != "" {
		out["dev.agentsafe.network"] = string(s.Network)
	}
	return out
}

func (a *app) describeID(rt *container.Runtime, id string) (*stateOutput, error) {
	c, err := rt.Load(id)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return describe(c)
}

func printTable(all []*stateOutput) error {
	const minWidth, tabWidth, padding = 12, 1, 3
	w := tabwriter.NewWriter(os.Stdout, minWidth, tabWidth, padding, ' ', 0)
	fmt.Fprint(w, "ID\tPID\tSTATUS\tBUNDLE\tCREATED\tOWNER\n")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", s.ID, s.PID, s.Status, s.Bundle, s.Created.Format(time.RFC3339Nano), s.Owner)
	}
	return w.Flush()
}

// ps prints the container's processes, as JSON or as the host's ps shows them.
func (a *app) ps(ctx context.Context, args []string) error {
	fs := newFlags("ps", "ID [PS OPTIONS]")
	format := fs.String("format", "table", "table or json")
	fs.StringVar(format, "f", "table", "table or json")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() < 1 {
		return fmt.Errorf("ps takes a container id")
	}
	c, err := a.load(fs.Arg(0))
	if err != nil {
		return err
	}
	pids, err := c.PIDs()
	if err != nil {
		return err
	}
	switch *format {
	case "json":
		if pids == nil {
			pids = []int{}
		}
		return json.NewEncoder(os.Stdout).Encode(pids)
	case "table":
	default:
		return fmt.Errorf("unknown format %q, want table or json", *format)
	}
	options := fs.Args()[1:]
	if len(options) == 0 {
		options = []string{"-ef"}
	}
	out, err := exec.CommandContext(ctx, "ps", options...).Output()
	if err != nil {
		return fmt.Errorf("run the host's ps: %w", err)
	}
	return filterPS(out, pids)
}

func filterPS(out []byte, pids []int) error {
	want := make(map[string]bool, len(pids))
	for _, pid := range pids {
		want[strconv.Itoa(pid)] = true
	}
	column := -1
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if column < 0 {
			for i, f := range fields {
				if f == "PID" {
					column = i
				}
			}
			if column < 0 {
				return fmt.Errorf("these ps options print no PID column")
			}
			fmt.Println(lines.Text())
			continue
		}
		if column < len(fields) && want[fields[column]] {
			fmt.Println(lines.Text())
		}
	}
	return lines.Err()
}
