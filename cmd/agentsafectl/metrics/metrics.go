package metrics

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/ps"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// ContentType is that of the format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// family is one metric with its samples.
type family struct {
	name, kind, help string
	samples          []sample
}

type sample struct {
	labels string
	value  float64
}

// set gathers families in the order of their first use.
type set struct {
	list []*family
	by   map[string]*family
}

func (s *set) add(name, kind, help, labels string, value float64) {
	f := s.by[name]
	if f == nil {
		f = &family{name: name, kind: kind, help: help}
		s.by[name], s.list = f, append(s.list, f)
	}
	f.samples = append(f.samples, sample{labels, value})
}

// Write measures the containers below the usual state directories and roots.
func Write(w io.Writer, roots []string) error {
	list, err := ps.Find(roots)
	if err != nil {
		return err
	}
	s := &set{by: map[string]*family{}}
	s.add("agentsafe_containers", "gauge", "Containers of this host under agentsafe.", "", float64(len(list)))
	for i := range list {
		s.container(&list[i])
	}
	out := bufio.NewWriter(w)
	for _, f := range s.list {
		fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
		for _, v := range f.samples {
			fmt.Fprintf(out, "%s%s %s\n", f.name, v.labels, strconv.FormatFloat(v.value, 'g', -1, 64))
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	return nil
}

// labels formats pairs of names and values.
func labels(pairs ...string) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		b.WriteString(pairs[i] + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(pairs[i+1]) + `"`)
	}
	return b.String() + "}"
}

// container adds what one container uses.
func (s *set) container(e *ps.Entry) {
	id := labels("id", e.ID)
	s.add("agentsafe_container_info", "gauge", "A container: engine, profile, network, status.",
		labels("id", e.ID, "engine", e.Engine, "profile", e.Profile, "network", e.Network, "status", e.Status, "policy", e.PolicyHash), 1)
	s.add("agentsafe_container_created_seconds", "gauge", "When the container was created, seconds since 1970.", id, float64(e.Created.UnixMilli())/1000)
	supervised := 0.0
	if e.Supervised {
		supervised = 1
	}
	s.add("agentsafe_container_supervised", "gauge", "1 if a supervisor enforces limits of this container.", id, supervised)
	rt, err := container.Open(container.Options{Root: e.Root})
	if err != nil {
		return
	}
	defer rt.Close()
	c, err := rt.Load(e.ID)
	if err != nil {
		return
	}
	defer c.Close()
	if end, err := c.End(); err == nil && end != nil {
		s.add("agentsafe_container_outputs_cut_total", "counter", "Streams that were ended by limits.outputBytes.", id, float64(end.OutputsCut))
		s.add("agentsafe_container_layers_full_total", "counter", "How often layers with a limit were full.", id, float64(end.LayersFull))
		s.add("agentsafe_container_egress_cut_total", "counter", "Limits of the network's bytes that were used up.", id, float64(end.EgressCut))
		if end.Reason != "" {
			s.add("agentsafe_container_ended", "gauge", "1 if a limit has ended the container, by its reason.", labels("id", e.ID, "reason", string(end.Reason)), 1)
		}
	}
	s.usage(c, id)
}

func (s *set) usage(c *container.Container, id string) {
	if n, err := c.OOMKills(); err == nil {
		s.add("agentsafe_container_oom_kills_total", "counter", "Processes that the kernel has ended for want of memory.", id, float64(n))
	}
	if n, err := c.PIDsRefused(); err == nil {
		s.add("agentsafe_container_pids_refused_total", "counter", "Forks that the limit of processes has refused.", id, float64(n))
	}
	stats, err := c.Stats()
	if err != nil {
		return
	}
	const nano = 1e9
	s.add("agentsafe_container_cpu_seconds_total", "counter", "Processor time.", id, float64(stats.CPU.Usage.Total)/nano)
	s.add("agentsafe_container_memory_bytes", "gauge", "Memory in use.", id, float64(stats.Memory.Usage.Usage))
	if stats.Memory.Usage.Max > 0 {
		s.add("agentsafe_container_memory_peak_bytes", "gauge", "The most memory that was in use.", id, float64(stats.Memory.Usage.Max))
	}
	if limit := stats.Memory.Usage.Limit; limit > 0 && limit < math.MaxInt64/2 {
		s.add("agentsafe_container_memory_limit_bytes", "gauge", "Limit of memory.", id, float64(limit))
	}
	s.add("agentsafe_container_processes", "gauge", "Processes and threads.", id, float64(stats.Pids.Current))
	if limit := stats.Pids.Limit; limit > 0 && limit < math.MaxInt64/2 {
		s.add("agentsafe_container_processes_limit", "gauge", "Limit of processes and threads.", id, float64(limit))
	}
}
