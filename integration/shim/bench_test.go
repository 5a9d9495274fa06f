package shim

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// contender is a shim with a runtime.
type contender struct {
	name, runtime string
	options       *anypb.Any
}

// contenders of a daemon. Debian's crun does not know the version of specs that the current containerd writes.
func contenders(c *containerd) []contender {
	runc := func(program string) contender {
		name := filepath.Base(program)
		value, err := proto.Marshal(&runcoptions.Options{BinaryName: program, Root: "/run/" + box.Tag + "-" + name})
		if err != nil {
			panic(err) // of a literal
		}
		return contender{name, "io.containerd.runc.v2", &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: value}}
	}
	list := []contender{{"agentsafe", runtimeName, nil}, runc("/usr/sbin/runc")}
	if c.name == "debian" {
		list = append(list, runc("/usr/bin/crun"))
	}
	return list
}

// bench is a container of a contender: made once, of which tasks are made again and again.
type bench struct {
	contender
	ctx             context.Context //nolint:containedctx // carries containerd's namespace for every call
	id              string
	tasks           tasks.TasksClient
	rootfs          []*types.Mount
	serial          int
	cycles          []float64 // milliseconds
	execs           []float64
	fresh, resident int // KiB of the shim with one container
}

func newBench(b *testing.B, c *containerd, conn *grpc.ClientConn, p contender, command ...string) *bench {
	b.Helper()
	t := &bench{contender: p, id: box.ID(), tasks: tasks.NewTasksClient(conn)}
	t.ctx = metadata.AppendToOutgoingContext(context.Background(), "containerd-namespace", box.Tag)
	c.must(b, append([]string{"containers", "create", "--runtime", p.runtime, harness.BusyboxName, t.id}, command...)...)
	b.Cleanup(func() {
		c.must(b, "containers", "delete", t.id)
		if p.name == "crun" {
			// crun makes plain directories and files where the second hierarchy of a hybrid host would be mounted.
			if err := os.RemoveAll(filepath.Join("/sys/fs/cgroup/unified", box.Tag, t.id)); err != nil {
				b.Error(err)
			}
		}
	})
	r, err := snapshots.NewSnapshotsClient(conn).Mounts(t.ctx, &snapshots.MountsRequest{Snapshotter: "overlayfs", Key: t.id})
	if err != nil {
		b.Fatal(err)
	}
	t.rootfs = r.Mounts
	return t
}

func (t *bench) create(b *testing.B) {
	b.Helper()
	if _, err := t.tasks.Create(t.ctx, &tasks.CreateTaskRequest{ContainerID: t.id, Rootfs: t.rootfs, Options: t.options}); err != nil {
		b.Fatalf("%s: create: %v", t.name, err)
	}
}

// finish starts a process and waits for its end.
func (t *bench) finish(b *testing.B, execID string) {
	b.Helper()
	_, err := t.tasks.Start(t.ctx, &tasks.StartRequest{ContainerID: t.id, ExecID: execID})
	if err != nil {
		b.Fatalf("%s: start: %v", t.name, err)
	}
	r, err := t.tasks.Wait(t.ctx, &tasks.WaitRequest{ContainerID: t.id, ExecID: execID})
	if err != nil || r.ExitStatus != 0 {
		b.Fatalf("%s: wait: %v, %v", t.name, r, err)
	}
}

func (t *bench) cycle(b *testing.B) {
	b.Helper()
	began := time.Now()
	t.create(b)
	t.finish(b, "")
	if _, err := t.tasks.Delete(t.ctx, &tasks.DeleteTaskRequest{ContainerID: t.id}); err != nil {
		b.Fatalf("%s: delete: %v", t.name, err)
	}
	t.cycles = append(t.cycles, millis(began))
	// What the daemon does behind its answer is not the next one's time.
	time.Sleep(100 * time.Millisecond)
}

func (t *bench) exec(b *testing.B) {
	b.Helper()
	t.serial++
	id := "e" + strconv.Itoa(t.serial)
	spec := execSpec(b, "true")
	began := time.Now()
	if _, err := t.tasks.Exec(t.ctx, &tasks.ExecProcessRequest{ContainerID: t.id, ExecID: id, Spec: spec}); err != nil {
		b.Fatalf("%s: exec: %v", t.name, err)
	}
	t.finish(b, id)
	if _, err := t.tasks.DeleteProcess(t.ctx, &tasks.DeleteProcessRequest{ContainerID: t.id, ExecID: id}); err != nil {
		b.Fatalf("%s: delete exec: %v", t.name, err)
	}
	t.execs = append(t.execs, millis(began))
}

// up starts a container that stays.
func (t *bench) up(b *testing.B) {
	b.Helper()
	t.create(b)
	if _, err := t.tasks.Start(t.ctx, &tasks.StartRequest{ContainerID: t.id}); err != nil {
		b.Fatalf("%s: start: %v", t.name, err)
	}
	t.fresh = residentKiB(b, shimOf(b, t.id))
	b.Cleanup(func() {
		t.tasks.Kill(t.ctx, &tasks.KillRequest{ContainerID: t.id, Signal: uint32(unix.SIGKILL)}) //nolint:errcheck // Delete tells
		t.tasks.Wait(t.ctx, &tasks.WaitRequest{ContainerID: t.id})                               //nolint:errcheck // likewise
		if _, err := t.tasks.Delete(t.ctx, &tasks.DeleteTaskRequest{ContainerID: t.id}); err != nil {
			b.Error(err)
		}
	})
}

// rest is how long every shim is left alone before its memory is looked at. Ours gives memory back then (shim/idle).
const rest = 4 * time.Second

func millis(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkShims measures through one daemon, by turns: a task's cycle (create, start, wait, delete of `true`), an exec's
// cycle in a running container, and the memory of a shim with one container: fresh, as soon as the container has started,
// and after a rest, which is how shims live. Medians, in milliseconds and KiB.
func BenchmarkShims(b *testing.B) {
	for _, c := range startContainerds(b) {
		b.Run(c.name, func(b *testing.B) {
			conn, err := grpc.NewClient("unix://"+c.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { conn.Close() })
			var short, long []*bench
			for _, p := range contenders(c) {
				short = append(short, newBench(b, c, conn, p, "true"))
				long = append(long, newBench(b, c, conn, p, "sleep", "1000"))
				long[len(long)-1].up(b)
			}
			time.Sleep(rest)
			for _, t := range long {
				t.resident = residentKiB(b, shimOf(b, t.id))
			}
			for b.Loop() {
				for i := range short {
					short[i].cycle(b)
					long[i].exec(b)
				}
			}
			for i, t := range short {
				b.ReportMetric(median(t.cycles), "ms-task-"+t.name)
				b.ReportMetric(median(long[i].execs), "ms-exec-"+t.name)
				b.ReportMetric(float64(long[i].resident), "KiB-"+t.name)
				b.ReportMetric(float64(long[i].fresh), "KiB-fresh-"+t.name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStart measures the program itself: its start-up, as each `start` and each shim pay it.
func BenchmarkStart(b *testing.B) {
	current, err := harness.CurrentContainerd(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	programs := map[string]string{
		"agentsafe": shimPath(), "runc-debian": "/usr/bin/containerd-shim-runc-v2", "runc-current": filepath.Join(current, "containerd-shim-runc-v2"),
	}
	times := map[string][]float64{}
	for b.Loop() {
		for name, program := range programs {
			began := time.Now()
			if out, err := exec.Command(program, "-v").CombinedOutput(); err != nil {
				b.Fatalf("%s: %v: %s", program, err, out)
			}
			times[name] = append(times[name], millis(began))
		}
	}
	for name, list := range times {
		b.ReportMetric(median(list), "ms-"+name)
	}
	b.ReportMetric(0, "ns/op")
}
