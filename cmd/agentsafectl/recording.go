package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/record"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// newRecordAttachCommand is what the runtime starts for a container that is recorded.
func newRecordAttachCommand() *cobra.Command {
	return &cobra.Command{
		Use: container.RecorderCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			err := recordAttached()
			if err != nil {
				fmt.Println(strings.ReplaceAll(err.Error(), "\n", " ")) // whoever started this waits for an answer
			}
			return err
		},
	}
}

func recordAttached() error {
	var r container.RecordRequest
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if err := record.Prepare(r.Recording.File); err != nil {
		return err
	}
	seen := record.NewObservations(r.Recording.Home, r.Recording.Workspace)
	seen.SetCommand(r.Command)
	err := record.Attach(r.PID, seen, func() error {
		_, err := fmt.Println(container.RecorderReady)
		return errors.Join(err, os.Stdout.Close(), os.Stdin.Close())
	})
	if err != nil {
		return err
	}
	return seen.Add(r.Recording.File)
}

func newRecordingsCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "recordings", Short: "List what was recorded of containers under engines", Args: cobra.NoArgs,
		Long: "Lists the recordings in " + container.RecordingsDir + ": of containers whose annotation agentsafe.dev/record\n" +
			"names one that the host's configuration allows, or whose handler has one.\n" +
			"`agentsafectl profile generate --recording NAME` makes a profile of one.",
		RunE: func(c *cobra.Command, _ []string) error { return listRecordings(c, container.RecordingsDir, asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// recordingInfo is one recording in a list.
type recordingInfo struct {
	Name     string    `json:"name"`
	Changed  time.Time `json:"changed"`
	Commands []string  `json:"commands"`
	Files    int       `json:"files"`
	Hosts    int       `json:"names"`
}

func listRecordings(c *cobra.Command, dir string, asJSON bool) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	list := []recordingInfo{}
	for _, f := range files {
		o, err := record.ReadFile(f)
		if err != nil {
			return err
		}
		info := recordingInfo{Name: strings.TrimSuffix(filepath.Base(f), ".json"), Commands: o.Commands, Files: len(o.Reads) + len(o.Writes), Hosts: len(o.Names)}
		if st, err := os.Stat(f); err == nil {
			info.Changed = st.ModTime().UTC()
		}
		list = append(list, info)
	}
	if asJSON {
		return json.NewEncoder(c.OutOrStdout()).Encode(list)
	}
	if len(list) == 0 {
		fmt.Fprintln(c.OutOrStdout(), "nothing has been recorded")
		return nil
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tCHANGED\tRUNS\tFILES\tHOSTS")
	for _, i := range list {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\n", i.Name, i.Changed.Format(time.DateTime), len(i.Commands), i.Files, i.Hosts)
	}
	return w.Flush()
}
