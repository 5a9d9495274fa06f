package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// hardening is one thing that the profile agent has over none, or that a profile can add to agent.
type hardening struct {
	name string
	// file of the repository, in which each text is exchanged for another to build a runtime without it.
	file string
	out  [][2]string
	// fields of a profile that add it to agent, in place of the above.
	fields string
}

// all stands for the profile agent over none.
const all = "all of it"

// hardenings are measured one at a time: all but the one, and all.
func hardenings() []hardening {
	return []hardening{
		{name: "system call filter", file: "profiles/plan.go", out: [][2]string{{"plan.AddFilter(ours)", "_ = ours"}}},
		{name: "Landlock", file: "runtime/container/policy.go", out: [][2]string{
			{"policy.Landlock = convertLandlock(plan.Landlock)", "policy.Landlock = convertLandlock(nil)"},
		}},
		{name: "network rules", file: "runtime/container/policy.go", out: [][2]string{
			{"if cr.policy.Network.Filtered() {", "if cr.policy.Network.Filtered() && cr.o == nil {"},
			{"if c.state.Network != netns.ModeEngine || c.unattached {", "if c.state.Network != netns.ModeGateway {"},
		}},
		{name: "no_new_privs, capabilities", file: "profiles/process.go", out: [][2]string{
			{"if out.Capabilities, notes, err = p.planCapabilities(in.Capabilities); err != nil {", "if err != nil {"},
			{"if p.NoNewPrivs() && !out.NoNewPrivileges {", "if p == nil {"},
		}},
		{name: "judging sources and the root", file: "runtime/container/policy.go", out: [][2]string{
			{"if listening, err = engineListeners(cr.src); err != nil {", "if err != nil {"},
			{"if facts.Root, err = cr.rootFacts(&mounts); err != nil {", "if facts.Root = (profiles.MountFacts{Path: cr.root.Path}); err != nil {"},
			{"facts.Paths = hostPaths()", "facts.Paths = nil"},
			{"if cr.plan[i].Bind && !profile.Unrestricted {", "if cr == nil {"},
		}},
		{name: "its policy for the task to read", file: "runtime/container/policy.go", out: [][2]string{
			{"if !profile.Unrestricted && tells(cr.plan) {", "if cr == nil {"},
		}},
		{name: "masked and read-only paths", file: "runtime/container/plan.go", out: [][2]string{
			{"MaskedPaths: cr.spec.Linux.MaskedPaths, ReadonlyPaths: cr.spec.Linux.ReadonlyPaths,", ""},
		}},
		{name: "no network at all", fields: "network: {mode: none}"},
		{name: "listed folders (Landlock)", fields: "filesystem: {read: [/], execute: [/], write: [/tmp, /var/tmp, /run, $HOME, $WORKSPACE]}"},
		{name: "listed ports (Landlock)", fields: "network: {mode: engine, connectPorts: [443], listenPorts: [8080]}"},
		{name: "hidden files", fields: `filesystem: {read: [/], execute: [/], write: [/], hide: ["~/.ssh", "~/.aws", "**/.env"]}`},
		{name: "variables taken away", fields: `environment: {deny: ["*_TOKEN", "*_SECRET*"]}`},
		{name: "limits of memory and processes", fields: "limits: {memory: 1GiB, pids: 200}"},
	}
}

// without is the directory of the runtime that lacks a hardening, beside the one under test.
func without(runtime, name string) string {
	slug := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return filepath.Join(filepath.Dir(runtime), ".test", "without", slug)
}

// buildWithout builds the runtimes that each lack one hardening, as the Makefile builds the whole one. The source stays as
// it is: a build takes a copy of the file.
func buildWithout(runtime string) error {
	root, err := harness.RepoRoot()
	if err != nil {
		return err
	}
	for _, h := range hardenings() {
		if h.file == "" {
			continue
		}
		if err := h.build(root, runtime); err != nil {
			return fmt.Errorf("build the runtime without %s: %w", h.name, err)
		}
	}
	return nil
}

func (h *hardening) build(root, runtime string) error {
	file, dir := filepath.Join(root, h.file), without(runtime, h.name)
	source, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text := string(source)
	for _, x := range h.out {
		if n := strings.Count(text, x[0]); n != 1 {
			return fmt.Errorf("%s has %q %d times, want it once", h.file, x[0], n)
		}
		text = strings.Replace(text, x[0], x[1], 1)
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{changed: []byte(text), overlay: list} {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			return err
		}
	}
	flags, err := exec.Command("go", "env", "GOFLAGS").Output()
	if err != nil {
		return err
	}
	build := exec.Command("make", "-s", "agentsafe", "BIN="+dir)
	build.Dir, build.Env = root, append(os.Environ(), "GOFLAGS="+strings.TrimSpace(string(flags))+" -overlay="+overlay)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	// Its helpers are found beside it.
	helpers, err := filepath.Glob(filepath.Join(filepath.Dir(runtime), "agentsafe-*"))
	for _, helper := range helpers {
		if err == nil {
			err = os.Symlink(helper, filepath.Join(dir, filepath.Base(helper)))
		}
	}
	return err
}

// cost is what one hardening costs: the runs with it less those without, in pairs that stand beside each other.
type cost struct {
	Name string `json:"name"`
	// Over says what it was added to.
	Over string `json:"over"`
	Wall spread `json:"wallMs"`
	CPU  spread `json:"cpuMs"`
}

// spread is a median, and the interval in which the true one lies in 95 of 100 cases.
type spread struct {
	Median float64 `json:"median"`
	From   float64 `json:"from"`
	To     float64 `json:"to"`
	Runs   int     `json:"runs"`
}

// newSpread sorts the differences. Source of the ranks: the binomial distribution of those below the median, taken for a
// normal one.
func newSpread(differences []time.Duration) spread {
	slices.Sort(differences)
	n := len(differences)
	half := int(math.Ceil(0.98 * math.Sqrt(float64(n))))
	ms := func(i int) float64 { return float64(differences[min(max(i, 0), n-1)].Microseconds()) / 1000 }
	return spread{ms(n / 2), ms(n/2 - half), ms(n/2 + half), n}
}

// measureHardenings measures each by itself. One with it and all without run in each round, forwards and backwards by
// turns, so that what the machine does meanwhile meets all of them.
func measureHardenings(b *harness.Box, o options, measure, rootfs string) ([]cost, error) {
	bundle, err := engineBundle(b, rootfs)
	if err != nil {
		return nil, err
	}
	ctl := filepath.Join(filepath.Dir(o.runtime), "agentsafectl")
	command := func(name, runtime, profile string) *subject {
		return &subject{Name: name, args: func(run int) []string {
			return []string{runtime, "--profile", profile, "--root", "/run/bench-hardening", "run", "--bundle", bundle, fmt.Sprintf("%s-h%d", b.Tag, run)}
		}}
	}
	taken, added := []*subject{command("", o.runtime, "agent")}, []*subject{}
	for i, h := range append([]hardening{{}}, hardenings()...) {
		if h.file != "" {
			taken = append(taken, command(h.name, filepath.Join(without(o.runtime, h.name), "agentsafe"), "agent"))
			continue
		}
		// The first is a copy of agent: a profile that is installed has to be read.
		profile := fmt.Sprintf("bench-%d", i)
		file := filepath.Join(b.Dir, profile+".yaml")
		text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: " + profile + "}\nextends: agent\n" + h.fields + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		if out, err := exec.Command(ctl, "profile", "install", file).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("install profile for %q: %w: %s", h.name, err, out)
		}
		added = append(added, command(h.name, o.runtime, profile))
	}
	taken = append(taken, command(all, o.runtime, "none"))
	out, err := measurePairs(measure, "agent without it", 1, taken, o.rounds)
	if err != nil {
		return nil, err
	}
	more, err := measurePairs(measure, "agent", -1, added, o.rounds)
	return append(out, more...), err
}

// measurePairs compares each subject with the first one; sign is 1 if the first one has what the others lack.
func measurePairs(measure, over string, sign time.Duration, subjects []*subject, rounds int) ([]cost, error) {
	const warmUp = 3
	samples := make([][]sample, len(subjects))
	for i := range rounds + warmUp {
		for j := range subjects {
			at := (j + i/2) % len(subjects)
			if i%2 == 1 {
				at = len(subjects) - 1 - at
			}
			m, err := measureOnce(measure, subjects[at].args(i))
			if err != nil {
				return nil, fmt.Errorf("hardening %q: %w", subjects[at].Name, err)
			}
			if i >= warmUp {
				samples[at] = append(samples[at], m)
			}
		}
	}
	var out []cost
	for j := 1; j < len(subjects); j++ {
		var wall, cpu []time.Duration
		for i := range samples[0] {
			wall = append(wall, sign*(samples[0][i].wall-samples[j][i].wall))
			cpu = append(cpu, sign*(samples[0][i].cpu-samples[j][i].cpu))
		}
		c := cost{subjects[j].Name, over, newSpread(wall), newSpread(cpu)}
		if c.Name == all {
			c.Over = "none"
		}
		out = append(out, c)
	}
	return out, nil
}

// engineBundle is a bundle as Docker makes one for `run -v FOLDER:/job`: its filter, a folder and three files.
func engineBundle(b *harness.Box, rootfs string) (string, error) {
	dir := filepath.Join(b.Dir, "bundle-engine")
	spec := harness.DefaultSpec()
	spec.Root.Path, spec.Process.Args, spec.Process.Cwd = rootfs, []string{"/bin/true"}, "/job"
	spec.Linux.CgroupsPath = b.CgroupParent() + "/bench-hardening"
	var err error
	if spec.Linux.Seccomp, err = dockerFilter(spec); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(dir, "work"), 0o755); err != nil {
		return "", err
	}
	binds := map[string]string{"/job": "work", "/etc/resolv.conf": "resolv.conf", "/etc/hosts": "hosts", "/etc/hostname": "hostname"}
	for _, destination := range []string{"/job", "/etc/resolv.conf", "/etc/hosts", "/etc/hostname"} {
		source := filepath.Join(dir, binds[destination])
		if destination != "/job" {
			if err := os.WriteFile(source, []byte("# for a benchmark\n"), 0o644); err != nil {
				return "", err
			}
		}
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: destination, Type: "bind", Source: source, Options: []string{"rbind", "rprivate"}})
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644)
}
