package report

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/runtime/audit"
)

// maxUsagePoints bounds a series: the log's writer has its own bound, and a log may be anybody's.
const maxUsagePoints = 1000

// usable says whether a series is one: a span, and as many values of each kind.
func usable(u *audit.Usage) bool {
	n := len(u.MemoryBytes)
	return u.EveryMillis > 0 && u.EveryMillis < math.MaxInt32 && n > 0 && n <= maxUsagePoints && len(u.CPUMillis) == n && len(u.PIDs) == n
}

// curve is what a container used of one thing: a value for each span of time.
type curve struct {
	name   string
	values []float64
	limit  float64 // 0 for none
	text   func(float64) string
}

// most is the highest value.
func (c *curve) most() float64 { return slices.Max(c.values) }

// curves are those that have anything to show.
func (r *Report) curves() []curve {
	u := r.Usage
	if u == nil {
		return nil
	}
	n := len(u.MemoryBytes)
	memory, cores, pids := make([]float64, n), make([]float64, n), make([]float64, n)
	var before int64
	for i := range n {
		memory[i], pids[i] = float64(u.MemoryBytes[i]), float64(u.PIDs[i])
		cores[i] = max(0, float64(u.CPUMillis[i]-before)) / float64(u.EveryMillis)
		before = u.CPUMillis[i]
	}
	all := []curve{
		{"memory", memory, r.memoryLimit(), bytesOf},
		{"processors in use", cores, r.Limits.CPUs, coresOf},
		{"processes", pids, r.pidsLimit(), countOf},
	}
	return slices.DeleteFunc(all, func(c curve) bool { return c.most() == 0 })
}

func coresOf(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// plot is a curve laid out: a drawing of plotWidth x plotHeight that is stretched to its place.
type plot struct {
	Name, Most, Limit string
	// Line is the curve and Area what is below it, as path data; Bound is the height of the limit, "" if it is off the
	// drawing; Marks are where a limit was met.
	Line, Area, Bound string
	Marks             []string
}

const plotWidth, plotHeight = 1000, 100

// plots draws the curves over the same time as the time line.
func (r *Report) plots() []plot {
	begin, whole := r.Container.Created, r.Ended.Sub(r.Container.Created)
	const least = 3 // fewer points tell nothing that the peaks don't
	if r.Usage == nil || len(r.Usage.MemoryBytes) < least || begin.IsZero() || whole <= 0 {
		return nil
	}
	every := time.Duration(r.Usage.EveryMillis) * time.Millisecond
	x := func(at time.Time) float64 {
		return min(max(plotWidth*float64(at.Sub(begin))/float64(whole), 0), plotWidth)
	}
	var marks []string
	for _, e := range r.Events {
		if e.Limit {
			marks = append(marks, number(x(e.Time)))
		}
	}
	var out []plot
	for _, c := range r.curves() {
		p := plot{Name: c.name, Most: c.text(c.most()), Limit: "no limit", Marks: marks}
		top := c.most()
		if c.limit > 0 {
			p.Limit = "of " + c.text(c.limit)
			const far = 4 // a limit that is farther away would press the curve flat
			if c.limit <= far*top {
				top = max(top, c.limit)
			}
		}
		const head = 1.08
		y := func(v float64) string { return number(plotHeight * (1 - v/(head*top))) }
		if c.limit > 0 && c.limit <= top {
			p.Bound = y(c.limit)
		}
		p.Line, p.Area = steps(c.values, func(i int) string { return number(x(r.begin().Add(time.Duration(i) * every))) }, y)
		out = append(out, p)
	}
	return out
}

// steps draws a value for each span as a line with corners, and closes it down to the ground.
func steps(values []float64, x func(int) string, y func(float64) string) (line, area string) {
	var b strings.Builder
	b.WriteString("M" + x(0) + " " + y(values[0]))
	for i := range values {
		if i > 0 && values[i] != values[i-1] {
			b.WriteString("V" + y(values[i]))
		}
		if i == len(values)-1 || values[i+1] != values[i] {
			b.WriteString("H" + x(i+1))
		}
	}
	ground := strconv.Itoa(plotHeight)
	return b.String(), b.String() + "V" + ground + "H" + x(0) + "Z"
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// spark is a curve in characters, for text.
func (c *curve) spark() string {
	const blocks, width = "▁▂▃▄▅▆▇█", 40
	levels := []rune(blocks)
	n := min(len(c.values), width)
	top := c.most()
	out := make([]rune, n)
	for i := range out {
		part := c.values[i*len(c.values)/n : (i+1)*len(c.values)/n]
		out[i] = levels[min(int(slices.Max(part)/top*float64(len(levels))), len(levels)-1)]
	}
	return string(out)
}
