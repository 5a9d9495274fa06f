package main

import (
	"fmt"
	"io"
)

// The project's targets, for the bundle with Docker's filter.
const (
	targetOfRunc  = 0.3
	targetOfCrun  = 0.8
	targetPeakKiB = 12 << 10
	// targetHardeningMs is what a single hardening may cost.
	targetHardeningMs = 0.3
)

type report struct {
	Subjects []*subject `json:"subjects"`
	// Ratios are medians divided: "agentsafe/runc seccomp" and so on.
	Ratios map[string]float64 `json:"ratios"`
	// HardeningMs is what the profile agent costs over none, by variant: the difference of the medians.
	HardeningMs map[string]float64 `json:"hardeningMs"`
	// Hardenings are what each costs by itself.
	Hardenings []cost `json:"hardenings,omitempty"`
}

func newReport(subjects []*subject) *report {
	r := &report{Subjects: subjects, Ratios: map[string]float64{}, HardeningMs: map[string]float64{}}
	floor := r.find("floor", "")
	for _, variant := range []string{"plain", "seccomp"} {
		ours := r.find("agentsafe", variant)
		r.HardeningMs[variant] = ours.Median - r.find(unhardened, variant).Median
		for _, peer := range []string{"runc", "crun"} {
			r.Ratios["agentsafe/"+peer+" "+variant] = ours.Median / r.find(peer, variant).Median
		}
		r.Ratios["agentsafe/floor "+variant] = ours.Median / floor.Median
	}
	return r
}

func (r *report) find(name, variant string) *subject {
	for _, s := range r.Subjects {
		if s.Name == name && s.Variant == variant {
			return s
		}
	}
	return &subject{}
}

func (r *report) missed() []string {
	var missed []string
	for _, variant := range []string{"plain", "seccomp"} {
		for peer, most := range map[string]float64{"runc": targetOfRunc, "crun": targetOfCrun} {
			if key := "agentsafe/" + peer + " " + variant; r.Ratios[key] > most {
				missed = append(missed, fmt.Sprintf("%s is %.2f, wanted at most %.2f", key, r.Ratios[key], most))
			}
		}
		if s := r.find("agentsafe", variant); s.PeakKiB > targetPeakKiB {
			missed = append(missed, fmt.Sprintf("peak memory %s is %d KiB, wanted at most %d", variant, s.PeakKiB, targetPeakKiB))
		}
	}
	for _, c := range r.Hardenings {
		switch {
		case c.Name == all || c.Wall.To <= targetHardeningMs:
		case c.Wall.From > targetHardeningMs:
			missed = append(missed, fmt.Sprintf("%s costs %.2f ms, wanted at most %.1f", c.Name, c.Wall.Median, targetHardeningMs))
		default: // neither is shown: the machine was too busy, or the rounds too few
			missed = append(missed, fmt.Sprintf("%s costs %s ms, wanted at most %.1f: not told", c.Name, c.Wall, targetHardeningMs))
		}
	}
	return missed
}

func (r *report) print(w io.Writer) {
	if len(r.Subjects) > 0 {
		r.printSubjects(w)
	}
	if len(r.Hardenings) > 0 {
		fmt.Fprintf(w, "\n%-34s %-18s %22s %22s\n", "one hardening", "more than", "wall ms (95 %)", "processor ms (95 %)")
	}
	for _, c := range r.Hardenings {
		fmt.Fprintf(w, "%-34s %-18s %22s %22s\n", c.Name, c.Over, c.Wall, c.CPU)
	}
	for _, m := range r.missed() {
		fmt.Fprintln(w, "missed:", m)
	}
}

func (s spread) String() string { return fmt.Sprintf("%+.2f (%+.2f to %+.2f)", s.Median, s.From, s.To) }

func (r *report) printSubjects(w io.Writer) {
	fmt.Fprintf(w, "%-10s %-8s %10s %10s %10s %10s %6s\n", "program", "bundle", "median ms", "min ms", "p90 ms", "peak MiB", "runs")
	for _, s := range r.Subjects {
		fmt.Fprintf(w, "%-10s %-8s %10.2f %10.2f %10.2f %10.1f %6d\n", s.Name, s.Variant, s.Median, s.Min, s.P90, float64(s.PeakKiB)/1024, s.Runs)
	}
	for _, variant := range []string{"plain", "seccomp"} {
		fmt.Fprintf(w, "agentsafe, %s: %.2f x runc (target %.1f), %.2f x crun (target %.1f), %.1f x floor\n", variant,
			r.Ratios["agentsafe/runc "+variant], targetOfRunc, r.Ratios["agentsafe/crun "+variant], targetOfCrun, r.Ratios["agentsafe/floor "+variant])
	}
	for _, variant := range []string{"plain", "seccomp"} {
		fmt.Fprintf(w, "all hardenings, %s: %+.2f ms for agent over none (smallest runs: %+.2f)\n", variant, r.HardeningMs[variant],
			r.find("agentsafe", variant).Min-r.find(unhardened, variant).Min)
	}
}
