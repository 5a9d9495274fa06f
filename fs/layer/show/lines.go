package show

import (
	"slices"
	"strings"
)

// edit is a run of lines that two texts share or don't: a[a0:a1] becomes b[b0:b1].
type edit struct{ a0, a1, b0, b1 int }

// splitLines cuts a text after each newline.
func splitLines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.SplitAfter(strings.TrimSuffix(s, "\n"), "\n")
}

// linesOf is splitLines with the last newline kept where it was.
func linesOf(s string) []string {
	out := splitLines(s)
	if n := len(out); n > 0 && strings.HasSuffix(s, "\n") {
		out[n-1] += "\n"
	}
	return out
}

// maxEdits bounds the work on texts that have little in common; beyond it the middle is taken as replaced.
const maxEdits = 2000

// compareLines returns where a and b differ, in order. It is the greedy algorithm of E. Myers, An O(ND) Difference
// Algorithm and Its Variations (1986), on what is left when equal ends are cut off.
func compareLines(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	if len(x) == 0 && len(y) == 0 {
		return nil
	}
	var out []edit
	for _, e := range myers(x, y) {
		out = append(out, edit{e.a0 + head, e.a1 + head, e.b0 + head, e.b1 + head})
	}
	return out
}

func myers(a, b []string) []edit {
	n, m := len(a), len(b)
	whole := []edit{{0, n, 0, m}}
	if n == 0 || m == 0 {
		return whole
	}
	limit := min(n+m, maxEdits)
	v := make([]int, 2*limit+2)
	var trace [][]int
	for d := 0; d <= limit; d++ {
		trace = append(trace, append([]int(nil), v...))
		for k := -d; k <= d; k += 2 {
			var x int
			if k == -d || k != d && v[limit+k-1] < v[limit+k+1] {
				x = v[limit+k+1]
			} else {
				x = v[limit+k-1] + 1
			}
			y := x - k
			for x < n && y < m && a[x] == b[y] {
				x, y = x+1, y+1
			}
			v[limit+k] = x
			if x >= n && y >= m {
				return backtrack(trace, limit, n, m)
			}
		}
	}
	return whole
}

// backtrack follows the saved states from the end to the beginning.
func backtrack(trace [][]int, limit, x, y int) []edit {
	var steps []edit // single insertions and deletions, last first
	for d := len(trace) - 1; d > 0; d-- {
		v := trace[d]
		k := x - y
		prev := k - 1
		if k == -d || k != d && v[limit+k-1] < v[limit+k+1] {
			prev = k + 1
		}
		px := v[limit+prev]
		py := px - prev
		for x > px && y > py {
			x, y = x-1, y-1
		}
		steps = append(steps, edit{px, x, py, y})
		x, y = px, py
	}
	var out []edit
	for _, s := range slices.Backward(steps) {

		if n := len(out); n > 0 && out[n-1].a1 == s.a0 && out[n-1].b1 == s.b0 {
			out[n-1].a1, out[n-1].b1 = s.a1, s.b1
			continue
		}
		out = append(out, s)
	}
	return out
}

// context is how many equal lines stand around a change.
const context = 3

// hunk is a group of edits that share their context.
type hunk struct {
	a0, a1, b0, b1 int
	edits          []edit
}

func hunks(edits []edit, lenA, lenB int) []hunk {
	var out []hunk
	for _, e := range edits {
		if n := len(out); n > 0 && e.a0-out[n-1].edits[len(out[n-1].edits)-1].a1 <= 2*context {
			out[n-1].edits = append(out[n-1].edits, e)
			continue
		}
		out = append(out, hunk{edits: []edit{e}})
	}
	for i := range out {
		h := &out[i]
		first, last := h.edits[0], h.edits[len(h.edits)-1]
		before := min(context, first.a0)
		after := min(context, lenA-last.a1)
		h.a0, h.b0 = first.a0-before, first.b0-before
		h.a1, h.b1 = last.a1+after, min(last.b1+after, lenB)
	}
	return out
}
