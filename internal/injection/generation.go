package injection

import "strings"

// Generation names what there is to give: whole stands for all of it, base for all
// but the device nodes of MIG instances. base is "" where those are needed to see
// the instances at all. The two are "base.whole", or "whole" as of toolkits that
// know of one part only: an agent and a toolkit of different releases understand
// each other, if by one new container too many.
func Generation(base, whole string) string {
	if base == "" {
		return whole
	}
	return base + "." + whole
}

// Extent is how much of what it was given an agent needs as it is now.
type Extent int

// The extents.
const (
	// Whole is for agents that run programs on MIG instances: that takes the
	// instance's own device nodes.
	Whole Extent = iota
	// Base is for agents that ask about MIG instances and do not run anything on
	// them. The capability mig/monitor is enough to see those that are made later.
	Base
)

// Current reports whether a container that was given one generation is given nothing
// else by another.
func Current(given, now string, extent Extent) bool {
	givenBase, givenWhole := parts(given)
	nowBase, nowWhole := parts(now)
	return givenWhole == nowWhole || extent == Base && givenBase != "" && givenBase == nowBase
}

func parts(generation string) (base, whole string) {
	base, whole, ok := strings.Cut(generation, ".")
	if !ok {
		return "", generation
	}
	return base, whole
}
