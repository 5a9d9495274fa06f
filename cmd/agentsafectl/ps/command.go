package ps

import (
	"encoding/json"
	"time"

	"github.com/spf13/cobra"
)

// Command is `agentsafectl ps`. root points to the state directory that the caller was told.
func Command(root *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ps",
		Short: "List this host's containers under agentsafe: engine, profile, network, limits, denials, status",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			entries, err := Find([]string{*root})
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				if entries == nil {
					entries = []Entry{}
				}
				return e.Encode(entries)
			}
			return Write(c.OutOrStdout(), entries, time.Now())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
