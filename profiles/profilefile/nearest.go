package profilefile

import (
	"maps"
	"slices"
	"strings"
)

// nearest names the key that was probably meant; "" if none is near.
func (s section) nearest(got string) string {
	keys := slices.Sorted(maps.Keys(s))
	best := Nearest(got, keys)
	if best == "" {
		return ", want one of " + strings.Join(keys, ", ")
	}
	return ", did you mean " + best + "?"
}

// Nearest returns the word that was probably meant; "" if none is near.
func Nearest(got string, words []string) string {
	const far, longest = 3, 40
	best, distance := "", far
	if len(got) > longest {
		return ""
	}
	for _, w := range words {
		if d := editDistance(strings.ToLower(got), strings.ToLower(w)); d < distance {
			best, distance = w, d
		}
	}
	return best
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
