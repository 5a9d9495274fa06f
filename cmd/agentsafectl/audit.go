package main

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/supervise"
)

// evidenceName is below the data directory.
const evidenceName = "evidence"

func newAuditCommand(p *paths) *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Verify, show and export the evidence of containers",
		Long: `Read the logs that containers leave whose profile has evidence: on.

A log is named by the container's id (the newest one of it), by id/TIME, or by
the path of its directory. Verifying needs the directory and the public key, and
nothing of this host.`,
		Args: cobra.NoArgs,
	}
	a := &auditFlags{paths: p}
	c.AddCommand(a.verifyCommand(), a.showCommand(), a.exportCommand(), a.listCommand(), a.keygenCommand())
	return c
}

type auditFlags struct {
	paths *paths
	json  bool
	key   string
}

// find returns the directory of a log.
func (a *auditFlags) find(name string) (string, error) {
	if strings.HasPrefix(name, "/") || strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../") {
		return name, nil
	}
	base := filepath.Join(a.paths.data, evidenceName)
	id, run, hasRun := strings.Cut(name, "/")
	if strings.Contains(run, "/") || id == ".." || run == ".." {
		return "", fmt.Errorf("log %q: want ID, ID/TIME or a path", name)
	}
	if hasRun {
		return filepath.Join(base, id, run), nil
	}
	runs, err := os.ReadDir(filepath.Join(base, id))
	if err != nil || len(runs) == 0 {
		return "", fmt.Errorf("container %q has left no evidence in %s (its profile needs evidence: {mode: on})", id, base)
	}
	return filepath.Join(base, id, runs[len(runs)-1].Name()), nil // names sort by time
}

// verification is what `audit verify --json` prints.
type verification struct {
	Log string `json:"log"`
	*audit.Report
	// Signature is "good", "none", "missing" (there was to be one) or "bad"; Note says more.
	Signature string           `json:"signature"`
	KeyID     string           `json:"keyId,omitempty"`
	Note      string           `json:"note,omitempty"`
	Statement *audit.Statement `json:"statement,omitempty"`
	OK        bool             `json:"ok"`
}

// verify checks a log's chain, and its statement if there is one.
func (a *auditFlags) verify(dir string) (*verification, error) {
	r, err := audit.Verify(dir)
	if err != nil {
		return nil, err
	}
	v := &verification{Log: dir, Report: r, Signature: "none"}
	defer func() { v.OK = len(v.Findings) == 0 && (v.Signature == "good" || v.Signature == "none") }()
	v.Findings = append(v.Findings, a.misplaced(dir)...)
	envelope, err := audit.ReadEnvelope(dir)
	switch {
	case errors.Is(err, os.ErrNotExist) && r.Closed && r.Unsigned == "":
		v.Signature, v.Note = "missing", "the log was closed with a statement to follow, and there is none: it was removed, or the supervisor was ended at that moment"
		return v, nil
	case errors.Is(err, os.ErrNotExist):
		v.Note = "no statement: the log can't be told from one that was cut or rewritten whole"
		return v, nil
	}
	if err != nil {
		v.Signature, v.Note = "bad", err.Error()
		return v, nil
	}
	key, err := a.publicKey()
	if err != nil {
		v.Note = "there is a statement, and no key to check it with: " + err.Error()
		return v, nil
	}
	v.KeyID = audit.KeyID(key)
	if v.Statement, err = envelope.Open(key); err != nil {
		v.Signature, v.Note = "bad", err.Error()
		return v, nil
	}
	v.Signature = "good"
	found, err := v.Statement.Matches(dir, r)
	if err != nil {
		return nil, err
	}
	v.Findings = append(v.Findings, found...)
	if later := int64(r.Records) - int64(v.Statement.Predicate.Log.Records); later > 0 { //nolint:gosec // numbers of records
		v.Note = fmt.Sprintf("%d records came after the statement", later)
	}
	return v, nil
}

// misplaced compares what a log is about with where it lies in this host's evidence: a log that was put in the place of
// another one is intact. Logs elsewhere may be called what their owner likes.
func (a *auditFlags) misplaced(dir string) []audit.Finding {
	base, err := filepath.Abs(filepath.Join(a.paths.data, evidenceName))
	if err != nil {
		return nil
	}
	full, err := filepath.Abs(dir)
	if err != nil {
		return nil
	}
	place, err := filepath.Rel(base, full)
	id, run, ok := strings.Cut(place, "/")
	if err != nil || !ok || strings.Contains(run, "/") || id == ".." {
		return nil
	}
	about, created := audit.LogSubject(dir)
	f := audit.Finding{File: "000001.jsonl", Line: 1, Seq: 1}
	switch {
	case about == "": // one that can't be read is found as such; the host's own log of promotions is about no container
	case about != id:
		f.What = fmt.Sprintf("it is about container %q and lies in the place of %q: it was put here", call.Visible(about), id)
	case created.UTC().Format(supervise.LogTime) != run:
		f.What = fmt.Sprintf("it is about a container of %s and lies in the place of that of %s: it was put here", created.UTC().Format(supervise.LogTime), run)
	}
	if f.What == "" {
		return nil
	}
	return []audit.Finding{f}
}

func (a *auditFlags) publicKey() (ed25519.PublicKey, error) {
	name := a.key
	if name == "" {
		name = filepath.Join(audit.KeyDir, audit.PublicFile)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return audit.ParsePublicKey(string(text))
}

func (a *auditFlags) verifyCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "verify LOG...", Short: "Check that nothing was changed, removed, re-ordered or cut off",
		Long: "Check logs and their signed statements. The exit status is 0 if all are as they were written, 1 if not.",
		Args: cobra.MinimumNArgs(1),
	}
	c.Flags().BoolVar(&a.json, "json", false, "print JSON, one object a log")
	c.Flags().StringVar(&a.key, "key", "", "public key `file` (default "+filepath.Join(audit.KeyDir, audit.PublicFile)+")")
	c.RunE = func(c *cobra.Command, args []string) error {
		bad := false
		for _, name := range args {
			dir, err := a.find(name)
			if err != nil {
				return err
			}
			v, err := a.verify(dir)
			if err != nil {
				return err
			}
			bad = bad || !v.OK
			if a.json {
				err = json.NewEncoder(c.OutOrStdout()).Encode(v)
			} else {
				v.print(c.OutOrStdout())
			}
			if err != nil {
				return err
			}
		}
		if bad {
			return &exitError{code: 1}
		}
		return nil
	}
	return c
}

func (v *verification) print(w io.Writer) {
	state := "intact"
	if len(v.Findings) > 0 {
		state = "CHANGED"
	}
	fmt.Fprintf(w, "%s\n  records    %d, %s\n", v.Log, v.Records, state)
	for _, f := range v.Findings {
		fmt.Fprintf(w, "             %s\n", f)
	}
	if v.Gaps > 0 {
		fmt.Fprintf(w, "  gaps       %d: records could not be written there\n", v.Gaps)
	}
	if !v.Closed {
		fmt.Fprintln(w, "  end        open: the container runs, or its supervisor did not finish")
	}
	fmt.Fprintf(w, "  signature  %s", v.Signature)
	if v.KeyID != "" {
		fmt.Fprintf(w, ", key %.16s", v.KeyID)
	}
	if v.Note != "" {
		fmt.Fprintf(w, " (%s)", v.Note)
	}
	fmt.Fprintln(w)
}

func (a *auditFlags) showCommand() *cobra.Command {
	var follow []string
	c := &cobra.Command{Use: "show LOG", Short: "Print the records of a log", Args: cobra.ExactArgs(1)}
	c.Flags().BoolVar(&a.json, "json", false, "print the records as they are written, JSON lines")
	c.Flags().StringSliceVar(&follow, "type", nil, "only records of these `types`")
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, err := a.find(args[0])
		if err != nil {
			return err
		}
		out := c.OutOrStdout()
		return audit.Read(dir, func(r *audit.Record, line []byte) error {
			if len(follow) > 0 && !slices.Contains(follow, r.Type) {
				return nil
			}
			if a.json {
				_, err := out.Write(append(line, '\n'))
				return err
			}
			_, err := fmt.Fprintf(out, "%6d  %s  %-11s  %s\n", r.Seq, r.Time.Format("2006-01-02 15:04:05.000"), r.Type, call.Visible(string(r.Data)))
			return err
		})
	}
	return c
}

func (a *auditFlags) exportCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "export LOG", Short: "Print the signed statement, or with --log the log itself", Args: cobra.ExactArgs(1),
	}
	whole := c.Flags().Bool("log", false, "print all records in place of the statement")
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, err := a.find(args[0])
		if err != nil {
			return err
		}
		if *whole {
			return audit.Read(dir, func(_ *audit.Record, line []byte) error {
				_, err := c.OutOrStdout().Write(append(line, '\n'))
				return err
			})
		}
		data, err := os.ReadFile(filepath.Join(dir, audit.StatementFile))
		if err != nil {
			return fmt.Errorf("export statement: %w", err)
		}
		_, err = c.OutOrStdout().Write(data)
		return err
	}
	return c
}

// logEntry is a line of `audit list`.
type logEntry struct {
	ID     string `json:"id"`
	Time   string `json:"time"`
	Signed bool   `json:"signed"`
	Path   string `json:"path"`
}

func (a *auditFlags) listCommand() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List the logs of this host", Args: cobra.NoArgs}
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		base := filepath.Join(a.paths.data, evidenceName)
		paths, err := filepath.Glob(filepath.Join(base, "*", "*"))
		if err != nil {
			return err
		}
		list := []logEntry{}
		for _, path := range paths {
			_, err := os.Stat(filepath.Join(path, audit.StatementFile))
			list = append(list, logEntry{filepath.Base(filepath.Dir(path)), filepath.Base(path), err == nil, path})
		}
		slices.SortFunc(list, func(x, y logEntry) int { return strings.Compare(x.Time, y.Time) })
		if a.json {
			return json.NewEncoder(c.OutOrStdout()).Encode(list)
		}
		fmt.Fprintf(c.OutOrStdout(), "%-32s  %-30s  %s\n", "ID", "TIME", "SIGNED")
		for _, e := range list {
			fmt.Fprintf(c.OutOrStdout(), "%-32s  %-30s  %v\n", e.ID, e.Time, e.Signed)
		}
		return nil
	}
	return c
}

func (a *auditFlags) keygenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "keygen", Short: "Make this host's signing key, once", Args: cobra.NoArgs,
		Long: "Make the ed25519 key that signs statements, in " + audit.KeyDir + ", readable by root alone. An existing key is kept.\n" +
			"To sign elsewhere, write " + filepath.Join(audit.KeyDir, audit.SignerFile) + ` with {"command": ["/path", "arg"]}: the program` + "\n" +
			`gets the bytes to sign on its standard input and prints {"keyid": "...", "sig": "base64"}.`,
		RunE: func(c *cobra.Command, _ []string) error {
			key, err := audit.GenerateKey(audit.KeyDir)
			if errors.Is(err, os.ErrExist) {
				fmt.Fprintln(c.OutOrStdout(), "there is a key already:", filepath.Join(audit.KeyDir, audit.KeyFile))
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "made %s\npublic key %s, id %s\n",
				filepath.Join(audit.KeyDir, audit.KeyFile), filepath.Join(audit.KeyDir, audit.PublicFile), audit.KeyID(key))
			return nil
		},
	}
}
