package tomledit

import (
	"maps"
	"slices"
)

// Leaf is a value other than a table, with its path.
type Leaf struct {
	Path  []string
	Value any
}

// Leaves lists the values in a table by name, inner tables last, with paths below at.
// An empty table has none.
func Leaves(table map[string]any, at ...string) []Leaf {
	var leaves, inner []Leaf
	for _, key := range slices.Sorted(maps.Keys(table)) {
		here := append(slices.Clone(at), key)
		if t, ok := table[key].(map[string]any); ok {
			inner = append(inner, Leaves(t, here...)...)
			continue
		}
		leaves = append(leaves, Leaf{here, table[key]})
	}
	return append(leaves, inner...)
}

// Equal compares values as returned by Parse or accepted by Set. Unlike in Go, NaN
// equals NaN.
func Equal(a, b any) bool { return equal(decoded(a), decoded(b)) }
