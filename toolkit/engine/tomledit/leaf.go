package tomledit

import (
	"maps"
	"slices"
)

// Leaf is a value that is no table, and where it is.
type Leaf struct {
	Path  []string
	Value any
}

// Leaves lists what is in a table by name, inner tables last, with paths below at.
// Empty tables have none.
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

// Equal compares values as Parse returns them, or as Set takes them. Unlike in Go,
// a NaN is a NaN.
func Equal(a, b any) bool { return equal(decoded(a), decoded(b)) }
