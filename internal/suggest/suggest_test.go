package suggest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSimilarWordsAreSuggestedAndFewAreListed(t *testing.T) {
	known := []string{"status", "explain"}
	require.Equal(t, `, did you mean "status"?`, Hint("Statsu", known))
	require.Equal(t, " (known here: status, explain)", Hint("frobnicate", known))
	require.Empty(t, Similar("frobnicate", known))
	require.Empty(t, Hint("frobnicate", strings.Fields(strings.Repeat("a ", 13))), "too many to list")
	require.Empty(t, Hint("x", nil))
}
