package main

import (
	"os"
	"runtime/debug"
)

// Bytes that the operator may take before garbage is collected more often than GOGC says.
const (
	memoryAtStart = 180e6 // until the Nodes are known; enough for 5,000
	memoryBase    = 80e6
	memoryPerNode = 20e3 // twice what is kept of a Node
)

// memoryLimit returns the limit for a number of Nodes.
func memoryLimit(nodes int) int64 {
	return max(memoryAtStart, memoryBase+int64(nodes)*memoryPerNode)
}

// limitMemory bounds the garbage that waits to be collected. Without it, the first list of a large
// cluster and the first pass over it would leave a multiple of what is kept. GOMEMLIMIT has precedence.
func limitMemory(nodes int) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(nodes))
	}
}
