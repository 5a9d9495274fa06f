package profilefile

import (
	"maps"
	"slices"
	"strings"
)

// nearest names the key that was probably meant; "" if none is near.
func (s section) nearest(got string) string {
	const far, longest = 3, 40
	best, distance := "", far
	if len(got) > longest {
		got = ""
	}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if d := editDistance(strings.ToLower(got), strings.ToLower(key)); d < distance {
			best, distance = key, d
		}
	}
	if best == "" {
		return ", want one of " + strings.Join(slices.Sorted(maps.Keys(s)), ", ")
	}
	return ", did you mean " + best + "?"
}

// editDistance counts the insertions, deletions and changes of bytes between two words.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
