package prefer_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
)

func uuidsOf(ids []string) []gpu.UUID {
	var all []gpu.UUID
	for _, id := range ids {
		all = append(all, gpu.UUID(id))
	}
	return all
}

func TestScoreMatchesTheOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := random(t, 1, 12)
		set := rapid.Permutation(ids(s)).Draw(t, "set")[:rapid.IntRange(0, len(s.Devices)).Draw(t, "size")]
		require.Equal(t, worth(allocatable(s), set), prefer.NewTopology(s).Score(uuidsOf(set)))
	})
}

func TestUnknownAndRepeatedGPUsAddNoScore(t *testing.T) {
	s := machines(8)[0].node
	topology := prefer.NewTopology(s)
	two := uuidsOf(gpus(0, 1))
	require.Equal(t, topology.Score(two), topology.Score(append(two, two[0], "GPU-of-another-node")))
	require.Positive(t, topology.Score(two))
}
