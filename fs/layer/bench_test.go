package layer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestBenchLayers prints what operations cost on trees of growing size with three changed files, beside git stash and a
// full copy. It is for people and for `make bench-layers`: times of a busy machine prove nothing, but that they don't
// grow with the tree is checked.
func TestBenchLayers(t *testing.T) {
	sizes := os.Getenv("AGENTSAFE_BENCH_LAYERS")
	if sizes == "" {
		t.Skip("probe AGENTSAFE_BENCH_LAYERS: it lists no numbers of files")
	}
	names := []string{"exec", "commit", "diff", "undo", "redo", "promote", "git stash", "cp -a"}
	fmt.Printf("%-10s", "files")
	for _, n := range names {
		fmt.Printf("%12s", n)
	}
	fmt.Println("   (ms, median of 7; git stash and cp -a once)")
	var first map[string]time.Duration
	for size := range strings.FieldsSeq(sizes) {
		n, err := strconv.Atoi(size)
		must(t, err)
		row := benchTree(t, n)
		fmt.Printf("%-10d", n)
		for _, name := range names {
			fmt.Printf("%12.2f", float64(row[name].Microseconds())/1000)
		}
		fmt.Println()
		if first == nil {
			first = row
		}
		const limit, growth = 10 * time.Millisecond, 5
		for _, name := range []string{"commit", "diff", "undo", "redo", "promote"} {
			if row[name] > max(limit, growth*first[name]) {
				t.Errorf("%d files: %s takes %v, with the smallest tree %v: it grows with the tree", n, name, row[name], first[name])
			}
		}
	}
}

func benchTree(t *testing.T, n int) map[string]time.Duration {
	t.Helper()
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprintf("d%d/e%d/f%d", i/1000, i/100%10, i%100)] = fmt.Sprintln("file", i)
	}
	b := newBench(t, files)
	row := map[string]time.Duration{}
	all := map[string][]time.Duration{}
	timed := func(name string, f func()) {
		began := time.Now()
		f()
		all[name] = append(all[name], time.Since(began))
	}
	for round := range 7 {
		var no int
		var dir string
		var done func()
		timed("exec", func() { no, dir, done = b.begin() })
		write(t, dir, map[string]string{"d0/e0/f1": fmt.Sprintln("new", round), "d0/e1/f2": "2", fmt.Sprintf("made%d", round): "3"})
		timed("exec", done)
		timed("commit", func() { b.finish(no) })
		timed("diff", func() {
			c, err := b.l.CompareRange(no, no)
			must(t, err)
			c.Close()
		})
		timed("undo", func() { must(t, b.l.Undo(no)) })
		timed("redo", func() { must(t, b.l.Redo(no)) })
		timed("promote", func() {
			plan, err := b.l.PlanPromotion(nil)
			must(t, err)
			must(t, b.l.Promote(plan))
		})
	}
	for name, list := range all {
		slices.Sort(list)
		row[name] = list[len(list)/2]
	}
	once := func(name, script string) {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = b.host
		began := time.Now()
		out, err := cmd.CombinedOutput()
		row[name] = time.Since(began)
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	once("cp -a", "cp -a . ../copy")
	once("git", "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm x && echo x >d0/e0/f1 && echo y >d0/e1/f2")
	once("git stash", "git -c user.name=a -c user.email=a@b stash -q && git stash pop -q")
	must(t, os.RemoveAll(filepath.Join(b.host, ".git")))
	return row
}
