package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// update changes limits, from runc's flags or from a JSON file of linux.resources.
func (a *app) update(_ context.Context, args []string) error {
	fs := newFlags("update", "ID")
	file := fs.String("resources", "", "JSON `file` of linux.resources, - for standard input")
	fs.StringVar(file, "r", "", "JSON `file` of linux.resources, - for standard input")
	res := &specs.LinuxResources{}
	registerResources(fs, res)
	id, err := parseID(fs, args)
	if err != nil {
		return err
	}
	if *file != "" {
		if res, err = readResources(*file); err != nil {
			return err
		}
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	return c.Update(res)
}

const maxResourcesBytes = 1 << 20

func readResources(name string) (*specs.LinuxResources, error) {
	in := os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxResourcesBytes))
	if err != nil {
		return nil, fmt.Errorf("read resources: %w", err)
	}
	var res specs.LinuxResources
	return &res, container.DecodeJSON(data, "resources", &res)
}

// registerResources binds runc's flags to fields; a flag that is not given leaves its field nil, which means "as it is".
func registerResources(fs *flag.FlagSet, r *specs.LinuxResources) {
	cpu := func() *specs.LinuxCPU {
		if r.CPU == nil {
			r.CPU = &specs.LinuxCPU{}
		}
		return r.CPU
	}
	memory := func() *specs.LinuxMemory {
		if r.Memory == nil {
			r.Memory = &specs.LinuxMemory{}
		}
		return r.Memory
	}
	unsigned := func(name, usage string, set func(uint64)) {
		fs.Func(name, usage, func(v string) error {
			n, err := strconv.ParseUint(v, 10, 64)
			if err == nil {
				set(n)
			}
			return err
		})
	}
	signed := func(name, usage string, parse func(string) (int64, error), set func(int64)) {
		fs.Func(name, usage, func(v string) error {
			n, err := parse(v)
			if err == nil {
				set(n)
			}
			return err
		})
	}
	fs.Func("blkio-weight", "weight of block I/O, 10 to 1000", func(v string) error {
		n, err := strconv.ParseUint(v, 10, 16)
		if err == nil {
			w := uint16(n)
			r.BlockIO = &specs.LinuxBlockIO{Weight: &w}
		}
		return err
	})
	unsigned("cpu-period", "period in `us`", func(n uint64) { cpu().Period = &n })
	signed("cpu-quota", "quota in `us` per period", parseInt, func(n int64) { cpu().Quota = &n })
	unsigned("cpu-burst", "burst in `us`", func(n uint64) { cpu().Burst = &n })
	unsigned("cpu-share", "relative `weight`", func(n uint64) { cpu().Shares = &n })
	unsigned("cpu-rt-period", "realtime period in `us`", func(n uint64) { cpu().RealtimePeriod = &n })
	signed("cpu-rt-runtime", "realtime runtime in `us`", parseInt, func(n int64) { cpu().RealtimeRuntime = &n })
	signed("cpu-idle", "1 for SCHED_IDLE", parseInt, func(n int64) { cpu().Idle = &n })
	fs.Func("cpuset-cpus", "CPU `list`", func(v string) error { cpu().Cpus = v; return nil })
	fs.Func("cpuset-mems", "memory node `list`", func(v string) error { cpu().Mems = v; return nil })
	signed("memory", "limit in `bytes`", parseBytes, func(n int64) { memory().Limit = &n })
	signed("memory-reservation", "soft limit in `bytes`", parseBytes, func(n int64) { memory().Reservation = &n })
	signed("memory-swap", "limit of memory and swap in `bytes`, -1 for none", parseBytes, func(n int64) { memory().Swap = &n })
	for _, name := range []string{"kernel-memory", "kernel-memory-tcp"} {
		fs.String(name, "", "ignored: the kernel has no such limit any more")
	}
	signed("pids-limit", "number of `processes`, -1 for no limit", parseInt, func(n int64) { r.Pids = &specs.LinuxPids{Limit: &n} })
	for _, name := range []string{"l3-cache-schema", "mem-bw-schema"} {
		fs.Func(name, "Intel RDT schema", func(string) error { return fmt.Errorf("Intel RDT is not supported") }) //nolint:staticcheck // a name
	}
}

func parseInt(v string) (int64, error) { return strconv.ParseInt(v, 10, 64) }

// parseBytes accepts 64m as runc does.
func parseBytes(v string) (int64, error) {
	shift := 0
	lower := strings.TrimSuffix(strings.ToLower(v), "b")
	for i, unit := range []string{"k", "m", "g", "t"} {
		if rest, ok := strings.CutSuffix(lower, unit); ok {
			const kibi = 10
			lower, shift = rest, (i+1)*kibi
		}
	}
	n, err := strconv.ParseInt(lower, 10, 64)
	if err != nil || (n > 0 && n<<shift>>shift != n) {
		return 0, fmt.Errorf("%q is not a number of bytes", v)
	}
	return n << shift, nil
}

type event struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Data any    `json:"data,omitempty"`
}

// events prints statistics, once or at an interval, and what limits the container meets as it happens: "oom" as from runc,
// "pids" when a process could not be started, "layers" when they are full, "egress" when the bytes of a profile are used up,
// and "limit" with why the container is ended.
func (a *app) events(ctx context.Context, args []string) error {
	fs := newFlags("events", "ID")
	once := fs.Bool("stats", false, "print statistics once")
	interval := fs.Duration("interval", 5*time.Second, "time between statistics")
	id, err := parseID(fs, args)
	if err != nil {
		return err
	}
	if *interval <= 0 {
		return fmt.Errorf("interval %v: must be greater than zero", *interval)
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status == container.StatusStopped {
		return fmt.Errorf("container with id %s is not running", id)
	}
	out := json.NewEncoder(os.Stdout)
	printStats := func() error {
		stats, err := c.Stats()
		if err != nil {
			return err
		}
		return out.Encode(event{"stats", id, stats})
	}
	if *once {
		return printStats()
	}
	oom, err := c.WatchOOM(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(*interval)
	defer tick.Stop()
	look := time.NewTicker(limitPoll)
	defer look.Stop()
	limits := limitWatch{c: c, out: out}
	limits.refused, _ = c.PIDsRefused()
	for {
		select {
		case _, ok := <-oom:
			if !ok {
				return limits.tell() // the cgroup is gone
			}
			if err := out.Encode(event{Type: "oom", ID: id}); err != nil {
				return err
			}
		case <-look.C:
			if err := limits.tell(); err != nil {
				return err
			}
		case <-tick.C:
			if err := printStats(); err != nil {
				return err
			}
		}
	}
}

// limitPoll is how often events looks for limits that no descriptor tells of.
const limitPoll = 250 * time.Millisecond

// limitWatch prints what limits a container has met since it was asked last.
type limitWatch struct {
	c       *container.Container
	out     *json.Encoder
	refused uint64
	full    uint64 // layers
	cut     uint64 // egress
	ended   bool
}

// tell prints what is new. What can't be read any more is gone with the container.
func (w *limitWatch) tell() error {
	if n, err := w.c.PIDsRefused(); err == nil && n > w.refused {
		w.refused = n
		if err := w.out.Encode(event{"pids", w.c.ID(), map[string]uint64{"refused": n}}); err != nil {
			return err
		}
	}
	end, err := w.c.End()
	if err != nil || end == nil {
		return nil //nolint:nilerr // see above
	}
	for _, c := range []struct {
		kind, what string
		seen       *uint64
		now        uint64
	}{{"layers", "full", &w.full, end.LayersFull}, {"egress", "cut", &w.cut, end.EgressCut}} {
		if c.now > *c.seen {
			*c.seen = c.now
			if err := w.out.Encode(event{c.kind, w.c.ID(), map[string]uint64{c.what: c.now}}); err != nil {
				return err
			}
		}
	}
	if w.ended || end.Reason == "" || end.Reason == container.EndOOM {
		return nil
	}
	w.ended = true
	return w.out.Encode(event{"limit", w.c.ID(), end})
}
