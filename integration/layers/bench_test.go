package layers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// benchMode is a way to have a folder in a container.
type benchMode struct {
	name        string
	annotations map[string]string
	// profile is what the container is made with, "" for the default.
	profile string
}

var benchModes = []benchMode{
	{name: "direct"},
	{name: "overlay", annotations: map[string]string{"agentsafe.dev/workspace": "overlay"}},
	{name: "transaction", annotations: map[string]string{"agentsafe.dev/workspace": "overlay", "agentsafe.dev/transaction": "auto"}},
}

// rounds is how often a benchmark goes through the modes; 0 is not at all.
func rounds(t *testing.T) int {
	t.Helper()
	if os.Getenv("AGENTSAFE_BENCH_LAYERS") == "" {
		t.Skip("probe AGENTSAFE_BENCH_LAYERS: not set")
	}
	n, err := strconv.Atoi(os.Getenv("AGENTSAFE_BENCH_ROUNDS"))
	if err != nil || n < 1 {
		return 7
	}
	return n
}

// TestBenchExec prints what a transaction adds to an exec that changes nothing, and to one that changes a file, by turns.
func TestBenchExec(t *testing.T) {
	n := 10 * rounds(t)
	d := bare(t)
	ids := map[string]string{}
	for _, m := range benchModes {
		ids[m.name] = benchUp(t, d, folder(t, project), m, nil)
	}
	fmt.Printf("%-28s%12s%12s%12s   (ms, median of %d by turns)\n", "exec of agentsafe", "direct", "overlay", "transaction", n)
	for _, work := range []struct{ name, script string }{{"true", "true"}, {"a file of 5 bytes written", "echo $$ >f"}} {
		times := map[string][]float64{}
		for range n {
			for _, m := range benchModes {
				began := time.Now()
				exec(t, d, ids[m.name], work.script)
				times[m.name] = append(times[m.name], float64(time.Since(began).Microseconds())/1000)
			}
		}
		fmt.Printf("%-28s", work.name)
		for _, m := range benchModes {
			fmt.Printf("%12.2f", median(times[m.name]))
		}
		fmt.Println()
	}
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

func benchUp(t *testing.T, d *harness.Bare, dir string, m benchMode, mutate func(*specs.Spec)) string {
	t.Helper()
	with := *d
	if m.profile != "" {
		with.Global = append(slices.Clip(d.Global), "--profile", m.profile)
	}
	id := with.Up(t, func(s *specs.Spec) {
		overlaid(dir)(s)
		s.Annotations = m.annotations
		if mutate != nil {
			mutate(s)
		}
	}).ID
	t.Cleanup(func() {
		d.Do(t, "delete", "--force", id)
		// Of a million files and more, after all rounds.
		box.Run(t, harness.Cmd{Args: []string{control(t), "layers", "rm", id}, Timeout: 15 * time.Minute})
	})
	return id
}

const benchBuild = "go test -c -o out ./fs/layer/tree"

// benchWork is what is measured: prepare and clean run before and after, untimed.
var benchWork = []struct{ name, clean, script string }{
	{"git status", "", "cd repo && for i in 1 2 3 4 5; do git status --short >/dev/null; done"},
	{"go test -c", "rm -f repo/out", "cd repo && " + benchBuild},
	{"npm install", "rm -rf node/node_modules", "cd node && npm ci --offline --no-audit --no-fund --cache /tmp/cache --loglevel=error >/dev/null"},
	// Into a directory of its own each time: ext4 does not use inodes again that were freed a moment ago, and looks for others.
	{"unpack 20,000 files", "", "mkdir t.$$ && tar -C t.$$ -xf /opt/many.tar"},
	{"delete 20,000 files", "mkdir d && tar -C d -xf /opt/many.tar", "rm -rf d"},
}

// workModes adds an overlay that the test has mounted by the kernel's own defaults and that the container has directly: what
// our layers cost beyond it is ours.
var workModes = append(slices.Clip(benchModes),
	benchMode{name: "memory", profile: memoryProfile},
	benchMode{name: "transaction, memory", profile: memoryProfile, annotations: map[string]string{"agentsafe.dev/transaction": "auto"}},
	benchMode{name: plainOverlay})

const memoryProfile = "in-memory"

// installMemoryProfile gives the box a profile whose layers lie in memory.
func installMemoryProfile(t *testing.T, size string) {
	t.Helper()
	file := filepath.Join(box.TempDir(t), memoryProfile+".yaml")
	text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: " + memoryProfile + ", description: layers in memory}\nextends: agent\n" +
		"filesystem: {workspace: {mode: overlay, memory: " + size + "}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mustCtl(t, "profile", "install", file)
	t.Cleanup(func() { os.Remove("/etc/agentsafe/profiles.d/" + memoryProfile + ".json") })
}

const plainOverlay = "plain overlay"

// TestBenchWork prints what work in an overlaid workspace costs beside the same on a direct mount, by turns: wall time and
// CPU time, as ratios.
func TestBenchWork(t *testing.T) {
	n := rounds(t)
	d := bare(t)
	inside := benchRoot(t)
	installMemoryProfile(t, "6GiB")
	ids := map[string]string{}
	for _, m := range workModes {
		dir := box.TempDir(t)
		if m.name == plainOverlay {
			dir = overlayOn(t, dir)
		}
		repo, err := harness.RepoRoot()
		if err != nil {
			t.Fatal(err)
		}
		box.MustRun(t, "git", "-c", "safe.directory=*", "clone", "-q", "--no-hardlinks", repo, filepath.Join(dir, "repo"))
		ids[m.name] = benchUp(t, d, dir, m, inside)
		warm := "cp -r /opt/npm/minimist node; cp -r /opt/npm/cache /tmp/cache; cd repo; git status --short; " + benchBuild
		if r := box.Run(t, harness.Cmd{Args: d.Args("exec", ids[m.name], "bash", "-ec", warm), Timeout: 10 * time.Minute}); r.Exit != 0 {
			t.Fatal(r)
		}
	}
	fmt.Printf("%-24s%14s", "work", "direct")
	for _, m := range workModes[1:] {
		fmt.Printf("%22s", m.name)
	}
	fmt.Printf("   (medians of %d by turns: seconds; times the direct mount, wall and CPU)\n", n)
	only := os.Getenv("AGENTSAFE_BENCH_WORK") // a part of the names, "" for all
	for _, w := range benchWork {
		if !strings.Contains(w.name, only) {
			continue
		}
		wall, cpu := map[string][]float64{}, map[string][]float64{}
		for range n {
			for _, m := range workModes {
				if w.clean != "" {
					d.Must(t, "exec", ids[m.name], "bash", "-ec", w.clean)
				}
				out := d.Do(t, "exec", ids[m.name], "bash", "-ec", "TIMEFORMAT='%R %U %S'; time { "+w.script+"\n}")
				var r, u, s float64
				lines := strings.Split(strings.TrimSpace(out.Stderr), "\n")
				if _, err := fmt.Sscan(lines[len(lines)-1], &r, &u, &s); err != nil || out.Exit != 0 {
					t.Fatalf("%s: %v", w.name, out)
				}
				wall[m.name], cpu[m.name] = append(wall[m.name], r), append(cpu[m.name], u+s)
			}
		}
		fmt.Printf("%-24s%14.2f", w.name, median(wall["direct"]))
		for _, m := range workModes[1:] {
			fmt.Printf("%13.2f x%6.2f x", median(wall[m.name])/median(wall["direct"]), median(cpu[m.name])/median(cpu["direct"]))
		}
		fmt.Println()
	}
}

// benchRoot gives containers the Debian image's programs, Go and an archive of many files.
func benchRoot(t *testing.T) func(*specs.Spec) {
	t.Helper()
	system, err := harness.Debian(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	rootfs := box.TempDir(t)
	box.MustRun(t, "tar", "-C", rootfs, "-xf", system.Tar)
	box.MustRun(t, "sh", "-ec", `mkdir -p "$1/many/tree" && cd "$1/many" && for d in $(seq 200); do mkdir tree/$d; for f in $(seq 100); do echo "$d $f" >tree/$d/$f; done; done; tar -cf "$1/opt/many.tar" tree`, "sh", rootfs)
	goroot, mod := os.Getenv("GOROOT"), os.Getenv("GOMODCACHE") // set by make bench-layers: there is no go in the box
	if goroot == "" || mod == "" {
		t.Fatal("GOROOT and GOMODCACHE say where Go is")
	}
	return func(s *specs.Spec) {
		ro := func(from, to string) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: to, Type: "bind", Source: from, Options: []string{"rbind", "ro"}})
		}
		for from, to := range map[string]string{"usr": "/usr", "usr/bin": "/bin", "usr/sbin": "/sbin", "usr/lib": "/lib", "usr/lib64": "/lib64", "opt": "/opt", "etc/alternatives": "/etc/alternatives"} {
			ro(filepath.Join(rootfs, from), to)
		}
		ro(goroot, "/go")
		ro(mod, "/mod")
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"})
		env := slices.DeleteFunc(slices.Clone(gitEnv), func(e string) bool { return strings.HasPrefix(e, "PATH=") || strings.HasPrefix(e, "HOME=") })
		s.Process.Env = append(env, "PATH=/go/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/tmp", "GOCACHE=/tmp/gocache", "GOMODCACHE=/mod", "GOPROXY=off", "GOFLAGS=-buildvcs=false", "CGO_ENABLED=0", "GOTOOLCHAIN=local")
	}
}
