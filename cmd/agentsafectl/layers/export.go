package layers

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
)

func (a *app) exportCommand() *cobra.Command {
	var format, output string
	var root bool
	c := &cobra.Command{
		Use:   "export ID[@N[..M]]",
		Short: "Write what a task changed as a patch, a tar archive or an OCI layer",
		Long: `Write what a task changed.

patch      a patch that git apply takes, binary files included, relative to the
           workspace (with several workspaces: to /)
git        the same as a mail, which git am makes a commit of
tar        the new and changed files, relative to the workspace
oci-layer  a layer of an OCI image, with whiteouts, at the workspace's path`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cmp, closeAll, err := a.compareArg(args[0], root)
			if err != nil {
				return err
			}
			defer closeAll()
			return exportTo(c.OutOrStdout(), output, func(w io.Writer) error { return export(w, cmp, format, args[0]) })
		},
	}
	c.Flags().StringVar(&format, "format", "patch", "patch, git, tar or oci-layer")
	c.Flags().BoolVar(&root, "rootfs", false, "what the container has changed in its root file system")
	c.Flags().StringVarP(&output, "output", "o", "", "write to `file`, which must not exist")
	return c
}

func exportTo(out io.Writer, name string, write func(io.Writer) error) error {
	if name != "" {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return fmt.Errorf("export: %w", err)
		}
		defer f.Close()
		if err := write(f); err != nil {
			os.Remove(name) //nolint:errcheck // the first error is the one to report
			return err
		}
		return nil
	}
	if isTerminal(out) {
		return fmt.Errorf("export: what comes from a layer is not written to a terminal: use -o, or agentsafectl diff")
	}
	w := bufio.NewWriter(out)
	if err := write(w); err != nil {
		return err
	}
	return w.Flush()
}

func export(w io.Writer, cmp *layer.Comparison, format, name string) error {
	switch format {
	case "git":
		if err := mailHead(w, "what agentsafe has of "+name, time.Now()); err != nil {
			return err
		}
		if err := export(w, cmp, "patch", name); err != nil {
			return err
		}
		_, err := io.WriteString(w, "-- \nagentsafe\n\n")
		return err
	case "patch":
		several := len(workspaces(cmp)) > 1
		for i := range cmp.List {
			c := &cmp.List[i]
			prefix := ""
			if several {
				prefix = strings.TrimPrefix(path.Clean(c.Workspace.Destination)+"/", "/")
			}
			s := show.Comparison{Old: c.Old, New: c.New, Changes: c.Changes}
			left, err := s.Patch(w, prefix)
			if err != nil {
				return err
			}
			noteLeft("a patch", left)
		}
		return nil
	case "tar", "oci-layer":
		t := show.NewTar(w)
		for i := range cmp.List {
			c := &cmp.List[i]
			o := show.TarOptions{}
			if format == "oci-layer" {
				o = show.TarOptions{Prefix: strings.TrimPrefix(path.Clean(c.Workspace.Destination)+"/", "/"), Whiteouts: true}
			}
			s := show.Comparison{Old: c.Old, New: c.New, Changes: c.Changes}
			left, err := t.Add(&s, o)
			if err != nil {
				return err
			}
			noteLeft("an archive of this kind", left)
		}
		return t.Close()
	}
	return fmt.Errorf("export: format %q: want patch, git, tar or oci-layer", format)
}

// noteLeft says what an export leaves out.
func noteLeft(what string, paths []string) {
	for _, p := range paths {
		fmt.Fprintf(os.Stderr, "agentsafectl: note: %s can't hold %s\n", what, show.SafeName(p))
	}
}

// mailHead writes what stands before a patch in a mail that git am takes. The subject is one line of visible characters.
func mailHead(w io.Writer, subject string, at time.Time) error {
	_, err := fmt.Fprintf(w, "From %040d Mon Sep 17 00:00:00 2001\nFrom: agentsafe <agentsafe@localhost>\nDate: %s\nSubject: [PATCH] %s\n"+
		"MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n\n---\n\n", 0, at.Format(time.RFC1123Z), show.SafeName(subject))
	return err
}

func workspaces(cmp *layer.Comparison) map[string]bool {
	out := map[string]bool{}
	for i := range cmp.List {
		out[cmp.List[i].Workspace.Destination] = true
	}
	return out
}
