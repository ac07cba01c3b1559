package pattern_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/pattern"
)

func TestAPatternMatchesAsARegularExpression(t *testing.T) {
	p := pattern.New(`^a(b+)$`)
	require.True(t, p.Matches("abb"))
	require.False(t, p.Matches("ba"))
	require.Equal(t, []string{"abb", "bb"}, p.Groups("abb"))
	require.Nil(t, p.Groups("ba"))
}

func TestAWrongPatternPanicsAtItsFirstUse(t *testing.T) {
	p := pattern.New(`(`)
	require.Panics(t, func() { p.Matches("") })
}
