package contract_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/contract"
)

func TestEachReasonIsExplainedOncePerComponent(t *testing.T) {
	word := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	cell := regexp.MustCompile(`^[^|\n]*[^|\n.\s]$`)
	seen := map[[2]string]bool{}
	for _, r := range contract.Reasons() {
		key := [2]string{string(r.By), r.Reason}
		require.False(t, seen[key], "%s of the %s: twice", r.Reason, r.By)
		seen[key] = true
		require.Regexp(t, word, r.Reason)
		require.Regexp(t, cell, r.Meaning, r.Reason)
		require.Regexp(t, cell, r.Next, r.Reason)
		require.NotContains(t, r.Meaning+r.Next, "](", "%s: the page makes the links", r.Reason)
	}
	require.Greater(t, len(seen), 200)
}
