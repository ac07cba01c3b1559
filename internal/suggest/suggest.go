// Package suggest finds the known word that an unknown one probably means: a misspelt key, flag or command.
package suggest

import (
	"fmt"
	"strings"
)

// Hint returns the end of an error about an unknown word: `, did you mean "x"?`, or the list of
// known words if none is similar and they are few.
func Hint(word string, known []string) string {
	if similar := Similar(word, known); similar != "" {
		return similar
	}
	return List(known)
}

// List returns the list of known words for the end of an error, or "" if they are many.
func List(known []string) string {
	if len(known) == 0 || len(known) > 12 {
		return ""
	}
	return fmt.Sprintf(" (known here: %s)", strings.Join(known, ", "))
}

// Similar is Hint for an error that lists the known words itself: it returns "" if none is similar.
func Similar(word string, known []string) string {
	// A similar word has at most 2 edits, or a third of the word's length if that is more.
	best, distance := "", 1+max(2, len(word)/3)
	for _, k := range known {
		if d := edits(strings.ToLower(word), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", best)
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
