// Package pattern provides regular expressions that are compiled on first use.
// Otherwise a program with dozens of them, which needs two, would compile all before
// main.
package pattern

import (
	"regexp"
	"sync"
)

// Pattern is a regular expression. It may be used concurrently.
type Pattern struct{ compiled func() *regexp.Regexp }

// New makes a Pattern. Its first use panics if expr is not a valid regular expression.
func New(expr string) Pattern {
	return Pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

// Matches reports whether s has a match.
func (p Pattern) Matches(s string) bool { return p.compiled().MatchString(s) }

// Groups returns the leftmost match of s and the matches of its groups; nil if there is
// none.
func (p Pattern) Groups(s string) []string { return p.compiled().FindStringSubmatch(s) }
