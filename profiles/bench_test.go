package profiles

import "testing"

// The first plan of a process is slow by what it touches: allocations stand for that, and don't depend on the machine's
// load. make bench-profiles has the times.
func TestPlanContainer_Allocations(t *testing.T) {
	spec := loadSpec(t, "docker")
	host := hostOf(spec)
	got := testing.AllocsPerRun(20, func() {
		plan, err := PlanContainer(spec, builtin(t, NameAgent), host)
		if err != nil {
			t.Fatal(err)
		}
		plan.Hash()
	})
	if got > maxPlanAllocations {
		t.Errorf("%.0f allocations, at most %d: something expensive came into the start path", got, maxPlanAllocations)
	}
}

const maxPlanAllocations = 450

func BenchmarkPlanContainer(b *testing.B) {
	spec := loadSpec(b, "docker")
	host := hostOf(spec)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := PlanContainer(spec, builtin(b, NameAgent), host); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	spec := loadSpec(b, "docker")
	plan, err := PlanContainer(spec, builtin(b, NameAgent), hostOf(spec))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		plan.Hash()
	}
}

func BenchmarkKey(b *testing.B) {
	f := agentFilter(builtin(b, NameAgent), "amd64")
	b.ReportAllocs()
	for b.Loop() {
		f.Key()
	}
}
