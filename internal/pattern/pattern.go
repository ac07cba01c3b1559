// Package pattern has regular expressions that are compiled when they are first
// used. A program that has dozens and needs two would compile all of them before its
// main begins.
package pattern

import (
	"regexp"
	"sync"
)

// Pattern is a regular expression. It may be used concurrently.
type Pattern struct{ compiled func() *regexp.Regexp }

// New makes a Pattern. Its first use panics where expr is no regular expression.
func New(expr string) Pattern {
	return Pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

// Matches reports whether s has a match.
func (p Pattern) Matches(s string) bool { return p.compiled().MatchString(s) }

// Groups returns the leftmost match of s and those of its groups; nil: there is none.
func (p Pattern) Groups(s string) []string { return p.compiled().FindStringSubmatch(s) }
