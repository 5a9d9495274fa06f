package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// networkStatus is what a gateway answers. It has the fields of the gateway's own type, which would bring the whole
// gateway into this program.
type networkStatus struct {
	Error       string              `json:"error,omitempty"`
	Policy      egress.Config       `json:"policy"`
	Changes     egress.Config       `json:"changes"`
	Connections []networkConnection `json:"connections"`
	Counts      networkCounts       `json:"counts"`
	Refused     []networkRefusal    `json:"refused"`
	Credentials []string            `json:"credentials,omitempty"`
	Members     []string            `json:"members,omitempty"`
}

type networkConnection struct {
	Name     string `json:"name,omitempty"`
	Address  string `json:"address,omitempty"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol,omitempty"`
	Seconds  int64  `json:"seconds"`
}

type networkCounts struct {
	Allowed  int64 `json:"allowed"`
	Refused  int64 `json:"refused"`
	BytesIn  int64 `json:"bytesIn"`
	BytesOut int64 `json:"bytesOut"`
}

type networkRefusal struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"`
	Name    string    `json:"name,omitempty"`
	Address string    `json:"address,omitempty"`
	Port    uint16    `json:"port,omitempty"`
	Code    string    `json:"code"`
	Reason  string    `json:"reason"`
}

func newNetworkCommand(p *paths) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "network",
		Short: "See and change what a running container may connect to",
		Long: `See and change what a running container may connect to.

The container's profile has the network mode gateway. A change holds until the
container ends, and for nothing else. What is denied is cut off at once, also
where it is connected; other connections do not notice.`,
	}
	c.PersistentFlags().BoolVar(&asJSON, "json", false, "print what the gateway says as JSON")
	add := func(use, short, op string, args int) {
		c.AddCommand(&cobra.Command{
			Use: use, Short: short, Args: cobra.ExactArgs(args),
			RunE: func(c *cobra.Command, args []string) error {
				r := wire.Request{Op: op}
				if len(args) > 1 {
					r.Rule = args[1]
				}
				s, raw, err := askGateway(p, args[0], r)
				if err != nil {
					return err
				}
				if asJSON {
					_, err = c.OutOrStdout().Write(raw)
				} else if op == "show" {
					err = s.print(c.OutOrStdout())
				}
				return err
			},
		})
	}
	add("show ID", "List rules, open connections and the last refusals", "show", 1)
	add("allow ID RULE", `Allow what a rule says, such as "example.com:443"`, "allow", 2)
	add("deny ID RULE", "Deny it, whatever is allowed", "deny", 2)
	return c
}

// askGateway sends one request to the gateway of a container.
func askGateway(p *paths, id string, r wire.Request) (*networkStatus, []byte, error) {
	if err := container.ValidateID(id); err != nil {
		return nil, nil, err
	}
	c, err := dialGateway(p.state, id)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second)) //nolint:errcheck // Decode says what is wrong
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return nil, nil, fmt.Errorf("ask gateway: %w", err)
	}
	raw, err := io.ReadAll(c)
	if err != nil {
		return nil, nil, fmt.Errorf("ask gateway: %w", err)
	}
	var s networkStatus
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, nil, fmt.Errorf("ask gateway: %w", err)
	}
	if s.Error != "" {
		return nil, nil, errors.New(s.Error)
	}
	return &s, raw, nil
}

// dialGateway connects to the gateway of a container, which may be that of another one of its pod.
func dialGateway(state, id string) (net.Conn, error) {
	dir, err := os.Open(filepath.Join(state, id))
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", id, err)
	}
	defer func() { dir.Close() }()
	if owner := container.GatewayOwner(dir); owner != "" {
		pod, err := os.Open(filepath.Join(state, owner))
		if err != nil {
			return nil, fmt.Errorf("container %q, whose gateway serves %q: %w", owner, id, err)
		}
		dir.Close()
		dir = pod
	}
	// By handle: the path of a socket must be short, and that of a state directory need not be.
	c, err := net.DialTimeout("unix", "/proc/self/fd/"+strconv.Itoa(int(dir.Fd()))+"/"+container.NetworkControl, 5*time.Second) //nolint:noctx // a local socket, with its own limit
	if err != nil {
		return nil, fmt.Errorf("container %q has no gateway that answers (network.mode of its profile, or it has ended): %w", id, err)
	}
	return c, nil
}

// print lists the status for people.
func (s *networkStatus) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(columns ...string) { fmt.Fprintln(w, strings.Join(columns, "\t")) }
	line("RULE", "FROM")
	for _, list := range []struct {
		rules []string
		from  string
	}{
		{s.Policy.RuleSets, "rule set"},
		{s.Policy.Allow, "allowed by the profile"},
		{s.Changes.Allow, "allowed while running"},
		{s.Policy.Deny, "denied by the profile"},
		{s.Changes.Deny, "denied while running"},
		{s.Credentials, "credential"},
	} {
		for _, r := range list.rules {
			line(r, list.from)
		}
	}
	for _, m := range s.Members {
		line("what container "+m+" may reach as well, which shares the network", "")
	}
	line()
	line("OPEN", "PORT", "PROTOCOL", "SECONDS")
	for _, c := range s.Connections {
		line(firstOf(c.Name, c.Address), strconv.Itoa(int(c.Port)), c.Protocol, strconv.FormatInt(c.Seconds, 10))
	}
	line()
	line("REFUSED", "PORT", "CODE", "REASON")
	for _, r := range s.Refused {
		port := ""
		if r.Port != 0 {
			port = strconv.Itoa(int(r.Port))
		}
		line(printable(firstOf(r.Name, r.Address)), port, r.Code, printable(r.Reason))
	}
	line()
	line(fmt.Sprintf("%d allowed, %d refused; %d bytes in, %d bytes out", s.Counts.Allowed, s.Counts.Refused, s.Counts.BytesIn, s.Counts.BytesOut))
	return w.Flush()
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// printable keeps what a task has chosen from speaking to the terminal.
func printable(s string) string {
	quoted := strconv.QuoteToASCII(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
