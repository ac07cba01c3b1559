package main

import (
	"slices"
	"strings"
)

// Kinds of patterns. memtest.cu computes the same words.
const (
	constant = iota // the seed
	walking         // one bit, which moves with each word and each seed
	address         // of the word's own address
	random
)

// pattern maps each place in memory to a word.
type pattern struct{ kind, seed, invert uint32 }

func (p pattern) inverse() pattern { return pattern{p.kind, p.seed, ^p.invert} }

// word returns the word at an address, the i-th of all words under test.
func (p pattern) word(i, at uint64) uint32 {
	v := p.seed
	switch p.kind {
	case walking:
		v = 1 << ((uint32(i) + p.seed) & 31)
	case address: // of two addresses that differ in one bit, the words differ, too
		v = uint32(at>>2) ^ uint32(at>>34)*0x9e3779b1
	case random: // MurmurHash3's last step
		v = (uint32(i) ^ uint32(i>>32)) + p.seed*0x9e3779b9
		v = (v ^ v>>16) * 0x85ebca6b
		v = (v ^ v>>13) * 0xc2b2ae35
		v ^= v >> 16
	}
	return v ^ p.invert
}

// step is one pass over all memory.
type step struct {
	kernel string // write, verify, or turn: verify and write the inverse
	pattern
}

// namedTest is a pattern with its names and the steps that test it.
type namedTest struct {
	name  string // of --patterns
	title string
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

// walk returns steps that move the bit through each place of each word.
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

// invertTwice returns steps that invert each word right after it was read, forth and back.
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
