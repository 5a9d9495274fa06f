package profiles

import "testing"

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
