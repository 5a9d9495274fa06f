package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// subject is one column of the comparison.
type subject struct {
	Name string `json:"name"`
	// Variant is "plain" or "seccomp", or empty for the floor.
	Variant string  `json:"variant,omitempty"`
	Median  float64 `json:"medianMs"`
	P90     float64 `json:"p90Ms"`
	Min     float64 `json:"minMs"`
	// PeakKiB is the largest resident set of the program or a child it reaped.
	PeakKiB int64 `json:"peakKiB"`
	Runs    int   `json:"runs"`

	args    func(run int) []string
	samples []time.Duration
}

// unhardened is agentsafe without its policy: the profile none, which is plain OCI.
const unhardened = "as-none"

func measureAll(b *harness.Box, o options) (*report, error) {
	measure, err := compile(b.Dir, "measure")
	if err != nil {
		return nil, err
	}
	floor, err := compile(b.Dir, "floor")
	if err != nil {
		return nil, err
	}
	image, err := harness.Busybox()
	if err != nil {
		return nil, err
	}
	rootfs := filepath.Join(b.Dir, "rootfs")
	if out, err := exec.Command("cp", "-a", image.Rootfs, rootfs).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy root file system: %w: %s", err, out)
	}
	subjects := []*subject{{Name: "floor", args: func(int) []string { return []string{floor, rootfs} }}}
	for _, variant := range []string{"plain", "seccomp"} {
		bundle, err := writeBundle(b, variant, rootfs)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"agentsafe", unhardened, "runc", "crun"} {
			command := []string{o.runtime}
			switch name {
			case "agentsafe":
			case unhardened:
				command = append(command, "--profile", "none")
			default:
				if command[0], err = exec.LookPath(name); err != nil {
					return nil, err
				}
			}
			command = append(command, "--root", filepath.Join("/run", "bench-"+name), "run", "--bundle", bundle)
			subjects = append(subjects, &subject{Name: name, Variant: variant, args: func(run int) []string {
				return append(slices.Clone(command), fmt.Sprintf("%s-%s-%s-%d", b.Tag, name, variant, run))
			}})
		}
	}
	r := &report{}
	if o.runs > 0 {
		if err := measureByTurns(measure, subjects, o.runs); err != nil {
			return nil, err
		}
		r = newReport(subjects)
	}
	if o.rounds > 0 {
		r.Hardenings, err = measureHardenings(b, o, measure, rootfs)
	}
	return r, err
}

// measureByTurns runs each subject once per round. Three rounds go unmeasured: they fill caches, ours of compiled
// filters and the kernel's.
func measureByTurns(measure string, subjects []*subject, runs int) error {
	const warmUp = 3
	for i := range runs + warmUp {
		for _, s := range subjects {
			m, err := measureOnce(measure, s.args(i))
			if err != nil {
				return fmt.Errorf("%s %s: %w", s.Name, s.Variant, err)
			}
			if i >= warmUp {
				s.samples = append(s.samples, m.wall)
				s.PeakKiB = max(s.PeakKiB, m.peakKiB)
			}
		}
	}
	for _, s := range subjects {
		slices.Sort(s.samples)
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		n := len(s.samples)
		s.Runs, s.Min, s.Median, s.P90 = n, ms(s.samples[0]), ms(s.samples[n/2]), ms(s.samples[n*9/10])
	}
	return nil
}

// sample is what one run took.
type sample struct {
	wall, cpu time.Duration
	peakKiB   int64
}

// measureOnce has measure.c run a program that must succeed.
func measureOnce(measure string, args []string) (sample, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(measure, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return sample{}, fmt.Errorf("measure: %w", err)
	}
	var ns, peak, cpuUsec int64
	var code int
	if _, err := fmt.Sscan(string(out), &ns, &peak, &code, &cpuUsec); err != nil {
		return sample{}, fmt.Errorf("measure: %q: %w", out, err)
	}
	if code != 0 {
		return sample{}, fmt.Errorf("exit code %d: %s", code, stderr.String())
	}
	return sample{time.Duration(ns), time.Duration(cpuUsec) * time.Microsecond, peak}, nil
}

// writeBundle writes a bundle that all runtimes accept: version 1.0.2, and with variant "seccomp" Docker's default
// filter for its default capabilities.
func writeBundle(b *harness.Box, variant, rootfs string) (string, error) {
	dir := filepath.Join(b.Dir, "bundle-"+variant)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	spec := harness.DefaultSpec()
	spec.Root.Path = rootfs
	spec.Process.Args = []string{"/bin/true"}
	if variant == "seccomp" {
		filter, err := dockerFilter(spec)
		if err != nil {
			return "", err
		}
		spec.Linux.Seccomp = filter
	}
	// One path for all runs: a runtime makes and removes its cgroup each time.
	spec.Linux.CgroupsPath = b.CgroupParent() + "/bench"
	data, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644)
}

func dockerFilter(spec *specs.Spec) (*specs.LinuxSeccomp, error) {
	filter, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		return nil, fmt.Errorf("docker's default seccomp profile: %w", err)
	}
	return filter, nil
}
