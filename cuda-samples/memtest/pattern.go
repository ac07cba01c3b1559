package main

import (
	"slices"
	"strings"
)

// Kinds of patterns. memtest.cu has the same, and computes the same words.
const (
	constant = iota // every word is the seed
	walking         // one bit is set: the next one in each next word, and with each next seed
	address         // a hash of the word's own address
	random          // pseudo-random numbers from the seed
)

// pattern maps each place in memory to a word. The bits of invert are inverted in every word.
type pattern struct{ kind, seed, invert uint32 }

func (p pattern) inverse() pattern { return pattern{p.kind, p.seed, ^p.invert} }

// word returns the word that belongs at address at. It is the i-th of all words under test.
func (p pattern) word(i, at uint64) uint32 {
	v := p.seed
	switch p.kind {
	case walking:
		v = 1 << ((uint32(i) + p.seed) & 31)
	case address: // the words of two addresses that differ in one bit differ, too
		v = uint32(at>>2) ^ uint32(at>>34)*0x9e3779b1
	case random: // MurmurHash3's last step
		v = (uint32(i) ^ uint32(i>>32)) + p.seed*0x9e3779b9
		v = (v ^ v>>16) * 0x85ebca6b
		v = (v ^ v>>13) * 0xc2b2ae35
		v ^= v >> 16
	}
	return v ^ p.invert
}

// step is one pass of a kernel over all memory. "write" writes the pattern, "verify" verifies it,
// and "turn" verifies each word and writes its inverse at once.
type step struct {
	kernel string
	pattern
}

// namedTest is a test that --patterns can choose by its name.
type namedTest struct {
	name  string // in --patterns
	title string // in messages and the report
	steps func(seed uint32) []step
}

var tests = []namedTest{
	{"walking-ones", "walking ones", func(uint32) []step { return walk(0) }},
	{"walking-zeros", "walking zeros", func(uint32) []step { return walk(^uint32(0)) }},
	{"address", "address in address", func(uint32) []step { return writeVerify(pattern{kind: address}) }},
	{"random", "random", func(seed uint32) []step { return writeVerify(pattern{kind: random, seed: seed}) }},
	{"checkerboard", "checkerboard", func(uint32) []step { return writeVerify(pattern{kind: constant, seed: 0x55555555}) }},
	{"inversions", "moving inversions", func(seed uint32) []step {
		return slices.Concat(invertTwice(pattern{kind: constant}), invertTwice(pattern{kind: random, seed: seed + 1}))
	}},
}

// walk returns steps in which each word has one bit set, in all 32 places in turn. If invert is all
// ones, one bit is clear instead.
func walk(invert uint32) []step {
	var steps []step
	for seed := range uint32(32) {
		p := pattern{walking, seed, invert}
		steps = append(steps, step{"write", p}, step{"verify", p})
	}
	return steps
}

// writeVerify returns steps that write and verify a pattern and its inverse.
func writeVerify(p pattern) []step {
	return []step{{"write", p}, {"verify", p}, {"write", p.inverse()}, {"verify", p.inverse()}}
}

// invertTwice returns steps that invert each word right after reading it, and later invert it back.
func invertTwice(p pattern) []step {
	return []step{{"write", p}, {"turn", p}, {"turn", p.inverse()}, {"verify", p}}
}

func isPattern(name string) bool {
	return slices.ContainsFunc(tests, func(t namedTest) bool { return t.name == name })
}

func patternNames() string {
	var names []string
	for _, t := range tests {
		names = append(names, t.name)
	}
	return strings.Join(names, ", ")
}
