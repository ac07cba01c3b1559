package upgrade

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Only the first nodes are watched: those that are cordoned must be among them.
func TestJoinedPlansWatchNodesInFlightFirst(t *testing.T) {
	a := &Plan{Watch: []string{"a1", "a2", "a3"}, idle: 2}
	b := &Plan{Watch: []string{"b1", "b2"}, idle: 1}
	joined := Join(a, b)
	require.Equal(t, []string{"a1", "b1", "a2", "a3", "b2"}, joined.Watch)
	require.Equal(t, []string{"a1", "b1", "c1", "a2", "a3", "b2"}, Join(joined, &Plan{Watch: []string{"c1"}}).Watch)
}
