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

// Lookup returns the value of a key below a decoded table. It finds no keys below an array.
func Lookup(table map[string]any, path ...string) (any, bool) {
	var at any = table
	for _, key := range path {
		table, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = table[key]; !ok {
			return nil, false
		}
	}
	return at, true
}

// Strings returns a decoded list of strings. It returns false for any other value.
func Strings(value any) ([]string, bool) {
	list, ok := value.([]any)
	out := make([]string, len(list))
	for i, item := range list {
		s, isString := item.(string)
		out[i], ok = s, ok && isString
	}
	return out, ok
}
