package config

import (
	"fmt"
	"strings"
)

// Suggest returns the end of an error about an unknown word: `, did you mean "x"?`, or
// the list of known words if none is similar and they are few.
func Suggest(word string, known []string) string {
	// A similar word has at most 2 edits, or a third of the word's length if that is more.
	best, distance := "", 1+max(2, len(word)/3)
	for _, k := range known {
		if d := edits(strings.ToLower(word), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf(", did you mean %q?", best)
	case len(known) > 0 && len(known) <= 12:
		return fmt.Sprintf(" (known here: %s)", strings.Join(known, ", "))
	}
	return ""
}

// edits returns the Levenshtein distance in bytes. It keeps one row of the table.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
