package profiles

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/netns/egress"
)

// Validate returns an error that begins with the path of the field which is wrong, as a profile file spells it.
func (p *Profile) Validate() error {
	if p.Name == "" {
		return errors.New("name: is empty")
	}
	if p.Unrestricted {
		return nil
	}
	for _, check := range []func() error{
		p.validateCapabilities, p.validateSyscalls, p.validateFilesystem, p.validateNetwork, p.validateHost,
		p.validateEnvironment, p.validateLimits, p.validateExec, p.validateTrust, p.validateEvidence, p.validateEnforced,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return oneOf("enforcement.landlock", p.Landlock, LandlockRequired, LandlockBestEffort, LandlockOff)
}

// oneOf accepts the listed words and the empty one, which is the field's default.
func oneOf[T ~string](field string, got T, words ...T) error {
	if got == "" || slices.Contains(words, got) {
		return nil
	}
	return fmt.Errorf("%s: %q is not one of %v", field, string(got), words)
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *Profile) validateCapabilities() error {
	for _, c := range p.Capabilities {
		if !knownCapability(c) {
			return fmt.Errorf("capabilities: %q is not a capability (want a name like CAP_CHOWN)", c)
		}
	}
	return nil
}

func (p *Profile) validateSyscalls() error {
	for _, k := range p.Syscalls.Packs {
		if !slices.Contains(packs(), k) {
			return fmt.Errorf("syscalls.packs: %q is not one of %v", k, packs())
		}
	}
	for _, n := range slices.Concat(p.Syscalls.Allow, p.Syscalls.Deny) {
		if !validSyscallName(n) {
			return fmt.Errorf("syscalls: %q is not a syscall's name", n)
		}
	}
	return nil
}

func (p *Profile) validateFilesystem() error {
	f := &p.Filesystem
	for _, set := range []struct {
		field string
		paths []string
	}{{"read", f.Read}, {"execute", f.Execute}, {"write", f.Write}, {"workspace.paths", f.Workspace.Paths}} {
		for _, unsafePath := range set.paths {
			if err := validatePath(unsafePath); err != nil {
				return fmt.Errorf("filesystem.%s: %w", set.field, err)
			}
		}
	}
	for _, h := range f.Hide {
		if err := validateHide(h); err != nil {
			return fmt.Errorf("filesystem.hide: %w", err)
		}
	}
	w := &f.Workspace
	if w.QuotaBytes < 0 || w.MemoryBytes < 0 || w.CopyBytes < 0 {
		return errors.New("filesystem.workspace.quota, memory and copy: are not negative")
	}
	return first(
		oneOf("filesystem.workspace.mode", w.Mode, WorkspaceDirect, WorkspaceOverlay, WorkspaceReadonly),
		oneOf("filesystem.workspace.promote", w.Promote, "manual"),
		oneOf("filesystem.workspace.background", w.Background, "kill", "keep"),
	)
}

func validatePath(unsafePath string) error {
	rest := unsafePath
	for _, v := range []string{"$HOME", "$WORKSPACE", "~"} {
		if after, ok := strings.CutPrefix(rest, v); ok {
			if after == "" {
				return nil
			}
			rest = after
			break
		}
	}
	switch {
	case rest == "" || rest[0] != '/':
		return fmt.Errorf("path %q is not absolute and does not start with $HOME, ~ or $WORKSPACE", unsafePath)
	case strings.ContainsAny(rest, "*?[$\x00"):
		return fmt.Errorf("path %q has a pattern or a variable: a path covers all below it", unsafePath)
	case path.Clean(rest) != rest:
		return fmt.Errorf("path %q is not clean: write %q", unsafePath, strings.TrimSuffix(unsafePath, rest)+path.Clean(rest))
	}
	return nil
}

func (p *Profile) validateNetwork() error {
	n := &p.Network
	if err := oneOf("network.mode", n.Mode, NetworkNone, NetworkGateway, NetworkEngine, NetworkHost); err != nil {
		return err
	}
	if len(n.AllowPrivate) > 0 {
		if n.Mode == "" || n.Mode == NetworkNone || n.Mode == NetworkGateway {
			return fmt.Errorf("network.allowPrivate: means nothing without the mode %s", NetworkEngine)
		}
		if err := (netns.Policy{Mode: netns.ModeEngine, AllowPrivate: n.AllowPrivate}).Validate(); err != nil {
			return fmt.Errorf("network.allowPrivate: %w", err)
		}
	}
	if n.Mode != NetworkGateway {
		for _, f := range []struct {
			field string
			n     int
		}{
			{"allow", len(n.Allow)},
			{"deny", len(n.Deny)},
			{"ruleSets", len(n.RuleSets)},
			{"addresses", len(n.Addresses)},
			{"dialFrom", len(n.DialFrom)},
			{"credentials", len(n.Credentials)},
		} {
			if f.n > 0 {
				return fmt.Errorf("network.%s: means nothing without the mode %s", f.field, NetworkGateway)
			}
		}
	}
	if err := oneOf("network.dialFrom", n.DialFrom, "container", "host"); err != nil {
		return err
	}
	return first(p.validatePorts(), p.validateGateway())
}

// validateGateway checks what only the gateway's mode has.
func (p *Profile) validateGateway() error {
	n := &p.Network
	if n.Mode != NetworkGateway {
		return nil
	}
	for _, c := range []string{"CAP_NET_RAW", "CAP_NET_ADMIN"} {
		if slices.Contains(p.Capabilities, c) {
			return fmt.Errorf("network.mode: %s does not go with %s, which sends below the rules or removes them", n.Mode, c)
		}
	}
	if _, err := egress.Compile(egress.Config{Allow: n.Allow, Deny: n.Deny, RuleSets: n.RuleSets, Addresses: n.Addresses}); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	for i := range n.Credentials {
		if err := n.Credentials[i].validate(); err != nil {
			return fmt.Errorf("network.credentials[%d]: %w", i, err)
		}
	}
	return nil
}

func (c *Credential) validate() error {
	kind, name, _ := strings.Cut(c.Present, ":")
	label, err := egress.ParseHost(c.Name + ".x")
	switch {
	case err != nil || label != c.Name+".x" || strings.Contains(c.Name, "."):
		return fmt.Errorf("name %q: want one label of a host name, in lower case", c.Name)
	case c.Name == "gateway" || c.Name == "proxy":
		return fmt.Errorf("name %q: is taken by the gateway itself", c.Name)
	case (c.File == "") == (len(c.Command) == 0):
		return errors.New("want a file or a command, one of them")
	case c.File != "" && !path.IsAbs(c.File), len(c.Command) > 0 && !path.IsAbs(c.Command[0]):
		return errors.New("the file or command is not an absolute path")
	case (kind == "header" || kind == "query") && name == "", kind != "header" && kind != "query" && c.Present != "bearer" && c.Present != "basic":
		return fmt.Errorf("present %q: want header:NAME, bearer, basic or query:NAME", c.Present)
	case c.BasePath != "" && (!path.IsAbs(c.BasePath) || path.Clean(c.BasePath) != c.BasePath || c.BasePath == "/" || strings.ContainsAny(c.BasePath, "?#%\\ \"'\n")):
		return fmt.Errorf("basePath %q: want a path from / on, without escapes, a query or a slash at its end", c.BasePath)
	case c.Inspect && c.PlaceholderEnv == "":
		return errors.New("inspect: the secret is put in place of a placeholder: want placeholderEnv, the variable that the task finds it in")
	case !slices.Contains([]string{"", "git", "npm", "pip"}, c.Client):
		return fmt.Errorf("client %q: want git, npm or pip", c.Client)
	}
	r, err := egress.ParseRule("https://" + c.Destination)
	if err != nil || !r.IsHost() {
		return fmt.Errorf("destination %q: want HOST or HOST:PORT", c.Destination)
	}
	return nil
}

func (p *Profile) validateHost() error {
	for _, n := range p.Host.Namespaces {
		if !slices.Contains(hostNamespaces(), n) {
			return fmt.Errorf("host.namespaces: %q is not one of %v", n, hostNamespaces())
		}
	}
	for _, m := range p.Host.Mounts {
		if !path.IsAbs(m) || path.Clean(m) != m {
			return fmt.Errorf("host.mounts: %q is not an absolute, clean path", m)
		}
	}
	for _, d := range p.Host.Devices {
		if err := d.validate(); err != nil {
			return fmt.Errorf("host.devices: %w", err)
		}
	}
	return nil
}

func (p *Profile) validateEnvironment() error {
	for _, g := range p.Environment.Deny {
		if _, err := path.Match(g, ""); err != nil || g == "" || strings.ContainsAny(g, "=/\x00") {
			return fmt.Errorf("environment.deny: %q is not a pattern of a variable's name", g)
		}
	}
	for _, g := range p.Environment.Allow {
		if g == "" || strings.ContainsAny(strings.TrimSuffix(g, "*"), "*?[\\=/\x00") {
			return fmt.Errorf("environment.allow: %q is neither a variable's name nor the beginning of one with a * behind", g)
		}
	}
	for name, value := range p.Environment.Set {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("environment.set: %q is not a variable's name, or has a value with a zero byte", name)
		}
	}
	return nil
}

func (p *Profile) validateLimits() error {
	l := &p.Limits
	if !(l.CPUs >= 0 && l.CPUs <= 1<<16) { // not a number is neither
		return errors.New("limits.cpus: out of range")
	}
	for _, n := range []struct {
		field string
		value int64
	}{
		{"memory", l.MemoryBytes},
		{"pids", l.PIDs},
		{"wallClock", int64(l.WallClock)},
		{"cpuTime", int64(l.CPUTime)},
		{"outputBytes", l.OutputBytes},
		{"openFiles", l.OpenFiles},
		{"egressBytes", l.EgressBytes},
		{"ingressBytes", l.IngressBytes},
		{"egressConnections", l.EgressConnections},
		{"egressRequests", l.EgressRequests},
		{"layerBytes", l.LayerBytes},
		{"layerInodes", l.LayerInodes},
	} {
		if n.value < 0 {
			return fmt.Errorf("limits.%s: is negative", n.field)
		}
	}
	if l.OnOutput != "" && l.OutputBytes == 0 {
		return errors.New("limits.onOutput: means nothing without limits.outputBytes")
	}
	return oneOf("limits.onOutput", l.OnOutput, OutputStop, OutputDiscard)
}

func (p *Profile) validateExec() error {
	if p.Exec.WallClock < 0 {
		return errors.New("exec.wallClock: is negative")
	}
	if p.Exec.Commit != "" && p.Exec.Transaction == "" {
		return errors.New("exec.commit: means nothing without exec.transaction")
	}
	if len(p.Exec.Base) > 0 && p.Exec.Transaction == "" {
		return errors.New("exec.base: means nothing without exec.transaction")
	}
	if slices.Contains(p.Exec.Base, "") {
		return errors.New("exec.base: an empty command")
	}
	return first(
		oneOf("exec.transaction", p.Exec.Transaction, "auto"),
		oneOf("exec.commit", p.Exec.Commit, "always", "success", "never"),
	)
}

func (p *Profile) validateEvidence() error {
	if p.Evidence.OnFull != "" && p.Evidence.Mode == "" {
		return errors.New("evidence.onFull: means nothing without evidence.mode")
	}
	return first(
		oneOf("evidence.mode", p.Evidence.Mode, "on"),
		oneOf("evidence.onFull", p.Evidence.OnFull, "stop", "gap"),
		oneOf("evidence.denials", p.Evidence.Denials, DenialsKernel),
	)
}
