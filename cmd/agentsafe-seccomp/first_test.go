package main

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/profiles/bpf"
)

// BenchmarkFirst is what the first container of a policy waits for: the plan of the agent profile on Docker's spec, and
// the compiler, a process for each of its two filters, with an empty cache. Of many runs the median; at most 30 ms.
func BenchmarkFirst(b *testing.B) {
	helper, err := filepath.Abs("../../bin/agentsafe-seccomp") // make build
	if err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	for b.Loop() {
		cache := b.TempDir()
		began := time.Now()
		if _, err := bpf.LoadAll(b.Context(), filters(b, "docker", nil), cache, helper); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median")
}
