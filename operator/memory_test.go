package main

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryIsLimitedByTheNumberOfNodes(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	for nodes, limit := range map[int]int64{0: 180e6, 5000: 180e6, 15_000: 380e6} {
		limitMemory(nodes)
		require.Equal(t, limit, debug.SetMemoryLimit(-1), "%d nodes", nodes)
	}
	limitMemory(0)
	t.Setenv("GOMEMLIMIT", "1GiB")
	limitMemory(15_000)
	require.Equal(t, int64(180e6), debug.SetMemoryLimit(-1))
}
