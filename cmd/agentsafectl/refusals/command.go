package refusals

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/denials"
)

// Command is `agentsafectl denials`. root and data point to the directories that the caller was told.
func Command(root, data *string) *cobra.Command {
	var asJSON, follow bool
	c := &cobra.Command{
		Use:   "denials ID",
		Short: "List what a container was refused, by which rule, and what would allow it",
		Long: `List what a container was refused, by which rule, and what would allow it.

Names and addresses come from the egress gateway, limits from the container's
supervisor. System calls and files are listed if the profile has
evidence: {denials: kernel} and as far as this kernel reports them. The
container itself reads the same in $AGENTSAFE_DENIALS. ID may be the beginning
of an id. Of a container that is gone its evidence tells, if it had any.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := open(*root, filepath.Join(*data, "evidence"), args[0])
			if err != nil {
				return err
			}
			defer s.close()
			p := &printer{out: c.OutOrStdout(), asJSON: asJSON}
			if err := p.all(c.Context(), s, follow); err != nil {
				return err
			}
			if s.remark != "" {
				fmt.Fprintln(c.ErrOrStderr(), "agentsafectl: note:", s.remark)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the container is deleted")
	return c
}

type printer struct {
	out    io.Writer
	asJSON bool
	heads  bool // the heading has been printed
}

// all prints what there is, and with follow what comes.
func (p *printer) all(ctx context.Context, s *source, follow bool) error {
	if s.file == nil {
		return p.print(s.list)
	}
	const often = 200 * time.Millisecond
	tick := time.NewTicker(often)
	defer tick.Stop()
	r := bufio.NewReader(s.file)
	var rest []byte
	for {
		// Before the file is read: what is written until the directory goes must not be missed.
		var st unix.Stat_t
		gone := unix.Fstat(int(s.dir.Fd()), &st) != nil || st.Nlink == 0
		list, err := readLines(r, &rest)
		if err != nil {
			return err
		}
		if err := p.print(list); err != nil || !follow || gone {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// readLines reads the complete lines that there are; rest keeps one that is not complete.
func readLines(r *bufio.Reader, rest *[]byte) ([]denials.Denial, error) {
	var out []denials.Denial
	for {
		chunk, err := r.ReadBytes('\n')
		*rest = append(*rest, chunk...)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read denials: %w", err)
		}
		d, err := denials.ParseLine(bytes.TrimSpace(*rest))
		if err != nil {
			return nil, err
		}
		out, *rest = append(out, d), (*rest)[:0]
	}
}

func (p *printer) print(list []denials.Denial) error {
	if p.asJSON {
		enc := json.NewEncoder(p.out)
		enc.SetEscapeHTML(false)
		for i := range list {
			if err := enc.Encode(&list[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return Write(p.out, list, &p.heads)
}

// Write prints denials for people. heads says that the heading has been printed before, and is set.
func Write(out io.Writer, list []denials.Denial, heads *bool) error {
	const padding = 2
	w := tabwriter.NewWriter(out, 0, 0, padding, ' ', 0)
	if !*heads && len(list) > 0 {
		*heads = true
		fmt.Fprintln(w, "TIME\tKIND\tREFUSED\tANSWER\tRULE\tALLOWED BY")
	}
	for i := range list {
		d := &list[i]
		what := Printable(d.What)
		if d.Count > 1 {
			what += fmt.Sprintf(" (%d times)", d.Count)
		}
		allow := d.Allow
		if allow == "" && d.Why != "" {
			allow = "(" + d.Why + ")"
		}
		at := "-"
		if !d.Time.IsZero() {
			at = d.Time.Local().Format("15:04:05")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", at, d.Kind, what, dash(Printable(d.Answer)), dash(Printable(d.Rule)), dash(Printable(allow)))
	}
	return w.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Printable keeps what a task has chosen from speaking to the terminal.
func Printable(s string) string {
	quoted := strconv.QuoteToASCII(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
