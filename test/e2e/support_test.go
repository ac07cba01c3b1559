package e2e

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPartOfATestHasNoRecord(t *testing.T) {
	for name, parts := range map[string][]string{"run": {"TestRoad/(a|b)", "TestRoad/a"}, "skip": {"TestRoad/a"}} {
		set := flag.Lookup("test." + name)
		before := set.Value.String()
		t.Cleanup(func() { require.NoError(t, set.Value.Set(before)) })
		for _, part := range parts {
			require.NoError(t, set.Value.Set(part))
			require.Equal(t, "-"+name+"="+part, selectedPart())
		}
		require.NoError(t, set.Value.Set("TestRoad"))
		require.Empty(t, selectedPart())
	}
}
