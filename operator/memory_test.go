package main

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryIsLimitedByNodesAndPods(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	t.Setenv("GOMEMLIMIT", "")
	for count, limit := range map[[2]int]int64{{}: 180e6, {5000, 0}: 180e6, {5000, 20_000}: 340e6, {15_000, 0}: 380e6} {
		limitMemory(count[0], count[1])
		require.Equal(t, limit, debug.SetMemoryLimit(-1), "%d nodes, %d pods", count[0], count[1])
	}
	limitMemory(0, 0)
	t.Setenv("GOMEMLIMIT", "1GiB")
	limitMemory(15_000, 0)
	require.Equal(t, int64(180e6), debug.SetMemoryLimit(-1))
}
