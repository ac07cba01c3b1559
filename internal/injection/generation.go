package injection

import (
	"cmp"
	"strings"
)

// Generation names the set of things to inject. whole identifies all of it, base all
// but the device nodes of MIG instances; base is "" if those are needed to see the
// instances at all. The result is "base.whole", or "whole" as older toolkits write it.
// An agent and a toolkit of different releases understand each other, at the price of
// at most one needless new container.
func Generation(base, whole string) string {
	if base == "" {
		return whole
	}
	return base + "." + whole
}

// Extent is the part of a generation that must be current for an agent.
type Extent int

// The extents.
const (
	// Whole is for agents that run programs on MIG instances, which needs the
	// instance's own device nodes.
	Whole Extent = iota
	// Base is for agents that query MIG instances and run nothing on them. The
	// capability mig/monitor is enough to see instances that are created later.
	Base
)

// Current reports whether a container with generation given needs nothing new from
// generation now, within extent.
func Current(given, now string, extent Extent) bool {
	givenBase, givenWhole := parts(given)
	nowBase, nowWhole := parts(now)
	return givenWhole == nowWhole || extent == Base && givenBase != "" && givenBase == nowBase
}

// BaseOf returns the part of a generation that MIG instances do not change.
func BaseOf(generation string) string {
	base, whole := parts(generation)
	return cmp.Or(base, whole)
}

func parts(generation string) (base, whole string) {
	base, whole, ok := strings.Cut(generation, ".")
	if !ok {
		return "", generation
	}
	return base, whole
}
