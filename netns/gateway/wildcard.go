package gateway

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// Bounds of names below a wildcard, where whoever serves the domain can read what a task writes into the question.
// Names that people and content networks use stay below them.
const (
	maxWildcardName  = 128
	maxWildcardLabel = 40
	// entropyFrom is from which length on a label's entropy is judged, entropyMax the bits per byte that are too many:
	// base32 of anything has 4.5 and more at this length, English words and hexadecimal at most 4.
	entropyFrom = 28
	entropyMax  = 4.1
)

// wildcards bounds what can be said in questions for names that no rule spells out.
type wildcards struct {
	perMinute int
	mu        sync.Mutex
	known     map[string]bool
	windows   map[string]*window // by rule
}

type window struct {
	start time.Time
	count int
}

func newWildcards(perMinute int) *wildcards {
	return &wildcards{perMinute: perMinute, known: map[string]bool{}, windows: map[string]*window{}}
}

// resolvable is the policy's decision on a name, and the limits of names below wildcards.
func (g *Gateway) resolvable(name string) egress.Decision {
	d := g.policy.Load().Resolves(name)
	if !d.Allowed || !d.Wildcard {
		return d
	}
	return g.wildcards.check(name, d)
}

func (w *wildcards) check(name string, d egress.Decision) egress.Decision {
	refuse := func(format string, args ...any) egress.Decision {
		return egress.Decision{Code: egress.OverLimit, Rule: d.Rule, Reason: fmt.Sprintf(format, args...)}
	}
	if len(name) > maxWildcardName {
		return refuse("a name of %d bytes under a wildcard; %d are the most: write it as a rule of its own", len(name), maxWildcardName)
	}
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case len(label) > maxWildcardLabel:
			return refuse("a label of %d bytes under a wildcard; %d are the most: write it as a rule of its own", len(label), maxWildcardLabel)
		case len(label) >= entropyFrom && entropy(label) > entropyMax:
			return refuse("the label %q looks like encoded data: write the name as a rule of its own", label)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known[name] {
		return d
	}
	now := time.Now()
	win := w.windows[d.Rule]
	if win == nil || now.Sub(win.start) > time.Minute {
		win = &window{start: now}
		w.windows[d.Rule] = win
	}
	if win.count >= w.perMinute || len(w.known) >= maxNames {
		return refuse("more than %d new names in a minute under the wildcard %q", w.perMinute, d.Rule)
	}
	win.count++
	w.known[name] = true
	return d
}

// entropy returns the bits per byte of s by the frequencies of its bytes.
func entropy(s string) float64 {
	var counts [256]int
	for i := range len(s) {
		counts[s[i]]++
	}
	sum := 0.0
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(s))
			sum -= p * math.Log2(p)
		}
	}
	return sum
}
