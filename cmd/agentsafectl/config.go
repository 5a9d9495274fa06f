package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/netns/gateway/inspect"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// hostConfigFile is config.toml.
type hostConfigFile struct {
	Default    string   `toml:"default"`
	Selectable []string `toml:"selectable"`
	Landlock   string   `toml:"landlock"`
	// WorktreeVariable is read by the runtime alone.
	WorktreeVariable bool                         `toml:"worktreeVariable"`
	Handlers         map[string]hostConfigHandler `toml:"handlers"`
	Network          hostConfigNetwork            `toml:"network"`
	Record           hostConfigRecord             `toml:"record"`
}

type hostConfigNetwork struct {
	DialFrom          string   `toml:"dialFrom"`
	AllowWhileRunning []string `toml:"allowWhileRunning"`
	Proxy             string   `toml:"proxy"`
	NoProxy           []string `toml:"noProxy"`
	ProxyAuth         string   `toml:"proxyAuth"`
	// InspectCertificate and InspectKey are read by `config check` and `apply`, too.
	InspectCertificate string `toml:"inspectCertificate"`
	InspectKey         string `toml:"inspectKey"`
}

type hostConfigRecord struct {
	Names []string `toml:"names"`
}

type hostConfigHandler struct {
	Profile     string `toml:"profile"`
	Enforcement string `toml:"enforcement"`
	Record      string `toml:"record"`
}

// newConfigCommand manages the host's configuration.
func newConfigCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "Check and apply the host's configuration", Args: cobra.NoArgs,
		Long: "The host's configuration is " + filepath.Join(container.ConfigDir, container.ConfigSource) + ":\n\n" +
			"  default = \"agent\"           # profile of containers for which nobody chose one\n" +
			"  selectable = [\"build\"]      # what the annotation agentsafe.dev/profile may name although it grants more\n" +
			"  landlock = \"required\"       # or best-effort: go on where the kernel can't enforce the file rules\n" +
			"  worktreeVariable = false    # whether the variable AGENTSAFE_WORKTREE counts, which an image can set\n" +
			"  [handlers.ci]               # agentsafe --profile ci, containerd-shim-agentsafe-ci-v2\n" +
			"  profile = \"build\"\n" +
			"  enforcement = \"warn\"       # log what the profile would refuse, and refuse nothing; never for the default\n" +
			"  record = \"ci-jobs\"          # record all its containers (agentsafectl profile recordings)\n" +
			"  [record]\n" +
			"  names = [\"shop-tests\"]      # recordings that the annotation agentsafe.dev/record may ask for\n" +
			"  [network]                   # for profiles with the mode gateway\n" +
			"  dialFrom = \"host\"           # containers without a network of their own go out through the host's\n" +
			"  allowWhileRunning = []      # what `agentsafectl network allow` may add beyond the handler's profile\n" +
			"  proxy = \"\"                  # http:// or https://HOST:PORT, if nothing gets out without one\n" +
			"  noProxy = []                # names, *.suffixes and ranges of addresses that are reached without it\n" +
			"  proxyAuth = \"\"              # file with USER:PASSWORD for it\n" +
			"  inspectCertificate = \"\"     # file of an authority of your own: profiles may have TLS inspected\n" +
			"  inspectKey = \"\"             # its private key, of root's and mode 0600\n\n" +
			"It holds once it has been applied; until then a changed file refuses new containers.",
	}
	var dir string
	c.PersistentFlags().StringVar(&dir, "config-dir", container.ConfigDir, "`directory` of the configuration")
	c.AddCommand(
		&cobra.Command{
			Use: "check", Short: "Say what is wrong with config.toml, if anything", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				if _, err := readConfigFile(dir); err != nil {
					return err
				}
				fmt.Fprintln(c.OutOrStdout(), "ok")
				return nil
			},
		},
		&cobra.Command{
			Use: "apply", Short: "Check config.toml and make it hold for new containers", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error { return applyConfig(c, dir) },
		},
	)
	return c
}

func applyConfig(c *cobra.Command, dir string) error {
	config, err := readConfigFile(dir)
	if err != nil {
		return err
	}
	if config == nil {
		err := os.Remove(filepath.Join(dir, container.ConfigCompiled))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("apply configuration: %w", err)
		}
		fmt.Fprintln(c.OutOrStdout(), "there is no", container.ConfigSource+": the defaults hold")
		return nil
	}
	data, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(dir, container.ConfigCompiled, append(data, '\n')); err != nil {
		return fmt.Errorf("apply configuration: %w", err)
	}
	fmt.Fprintln(c.OutOrStdout(), "applied")
	return nil
}

// readConfigFile returns nil if there is no file.
func readConfigFile(dir string) (*container.HostConfig, error) {
	name := filepath.Join(dir, container.ConfigSource)
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no configuration is one
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The stamp comes first: a change while this reads makes the result stale instead of wrong.
	stamp, err := container.StampConfig(dir)
	if err != nil {
		return nil, err
	}
	const maxBytes = 1 << 20
	data, err := io.ReadAll(io.LimitReader(f, maxBytes))
	if err != nil {
		return nil, err
	}
	config, err := parseConfig(data)
	if err == nil {
		err = config.Check(dir)
	}
	if err == nil {
		err = checkAuthority(&config.Network)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	config.Source = stamp
	return config, nil
}

// checkAuthority reads the authority for inspection, which the runtime itself never parses.
func checkAuthority(n *container.HostNetwork) error {
	if n.InspectKey == "" {
		return nil
	}
	cert, err := os.ReadFile(n.InspectCertificate)
	if err != nil {
		return fmt.Errorf("network.inspectCertificate: %w", err)
	}
	key, err := os.ReadFile(n.InspectKey)
	if err != nil {
		return fmt.Errorf("network.inspectKey: %w", err)
	}
	if _, err := inspect.ParseAuthority(cert, key); err != nil {
		return fmt.Errorf("network.inspectCertificate, inspectKey: %w", err)
	}
	return nil
}

func parseConfig(data []byte) (*container.HostConfig, error) {
	var file hostConfigFile
	err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&file)
	if unknown, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		first := unknown.Errors[0]
		row, _ := first.Position()
		return nil, fmt.Errorf("line %d: %v: is not a key of the configuration", row, first.Key())
	}
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, column := wrong.Position()
		return nil, fmt.Errorf("line %d, column %d: %w", row, column, err)
	}
	if err != nil {
		return nil, err
	}
	out := &container.HostConfig{
		Default: file.Default, Selectable: file.Selectable, Landlock: file.Landlock, WorktreeVariable: file.WorktreeVariable,
		Network: container.HostNetwork(file.Network), Record: container.HostRecord(file.Record),
	}
	for _, name := range slices.Sorted(maps.Keys(file.Handlers)) {
		h := file.Handlers[name]
		out.Handlers = append(out.Handlers, container.Handler{Name: name, Profile: h.Profile, Enforcement: container.Enforcement(h.Enforcement), Record: h.Record})
	}
	return out, nil
}

// replaceFile writes a file atomically: whoever reads meanwhile gets the old one or the new one.
func replaceFile(dir, name string, data []byte) error {
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
