package main

import (
	"os"
	"runtime/debug"
)

// Bytes that the operator may take before garbage is collected more often than GOGC says: twice what it
// keeps of a Node and of an operand's pod, and the least, which also holds until the caches are filled.
const (
	memoryBase    = 80e6
	memoryPerNode = 20e3
	memoryPerPod  = 8e3
	memoryLeast   = 180e6 // what 5,000 Nodes without pods need
)

// limitMemory bounds the garbage that waits to be collected. Without it, the first list of a large
// cluster and the first pass over it would leave several times what is kept. GOMEMLIMIT has precedence.
func limitMemory(nodes, pods int) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(memoryLeast, memoryBase+int64(nodes)*memoryPerNode+int64(pods)*memoryPerPod))
	}
}
