package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
	"github.com/agentsafe/agentsafe/cmd/agentsafectl/report"
)

func newReportCommand(p *paths) *cobra.Command {
	a := &auditFlags{paths: p}
	var html, markdown bool
	var output string
	c := &cobra.Command{
		Use:   "report LOG",
		Short: "Tell the life of a container: processes, limits, changes, network, denials, verification",
		Long: `Tell the life of a container from its log (the newest one of an id, id/TIME, or
the path of a directory): as one HTML page that needs no network, as Markdown, or
as JSON. The log is verified first, and the report says what was found.`,
		Example: `  agentsafectl report --html -o report.html demo`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir, err := a.find(args[0])
			if err != nil {
				return err
			}
			r, err := a.report(dir)
			if err != nil {
				return err
			}
			write := r.WriteMarkdown
			switch {
			case html:
				write = r.WriteHTML
			case a.json:
				write = r.WriteJSON
			}
			return writeReport(c.OutOrStdout(), output, write)
		},
	}
	flags := c.Flags()
	flags.BoolVar(&html, "html", false, "write one HTML page")
	flags.BoolVar(&a.json, "json", false, "write JSON")
	flags.BoolVar(&markdown, "markdown", false, "write Markdown (the default)")
	flags.StringVarP(&output, "output", "o", "", "write to `file`, which is replaced")
	flags.StringVar(&a.key, "key", "", "public key `file` (default: the host's)")
	c.MarkFlagsMutuallyExclusive("html", "json", "markdown")
	return c
}

// report verifies and reads a log.
func (a *auditFlags) report(dir string) (*report.Report, error) {
	v, err := a.verify(dir)
	if err != nil {
		return nil, err
	}
	rv := report.Verification{
		State: "intact", Signature: v.Signature, KeyID: v.KeyID, Note: v.Note, Records: v.Records, Gaps: v.Gaps, Closed: v.Closed, Head: v.Head,
	}
	for _, f := range v.Findings {
		rv.State = "changed"
		rv.Findings = append(rv.Findings, f.String())
	}
	r, err := report.Read(dir, rv)
	if err != nil {
		return nil, err
	}
	if err := r.AddDiffs(filepath.Join(a.paths.data, layersName)); err != nil {
		fmt.Fprintln(os.Stderr, "agentsafectl: note: the changes of transactions can't be read:", call.Visible(err.Error()))
	}
	return r, nil
}

func writeReport(out io.Writer, name string, write func(io.Writer) error) error {
	if name == "" {
		return write(out)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
