package nodestate

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMissedContainersAreBounded(t *testing.T) {
	parse := func(count int, names ...string) error {
		_, err := Parse(edit(t, func(m map[string]any) {
			m["toolkit"] = map[string]any{"injection": map[string]any{"working": true, "missed": names, "missedCount": count}}
		}))
		return err
	}
	require.NoError(t, parse(1, "team/job/main"))
	require.NoError(t, parse(40, slices.Repeat([]string{"team/job/main"}, MaxMissed)...))
	require.ErrorContains(t, parse(40, slices.Repeat([]string{"a"}, MaxMissed+1)...), "toolkit.injection.missed: 17 listed of 40")
	require.ErrorContains(t, parse(1, "a", "b"), "2 listed of 1")
	require.ErrorContains(t, parse(2, "a", "\x1b[2J"), "toolkit.injection.missed[1]: has a control character")
}

func TestContainerNamesAreCleaned(t *testing.T) {
	given := []string{"a\x1bb", strings.Repeat("x", 1000)}
	s := State{Toolkit: &ToolkitInfo{Injection: &Injection{Missed: given, MissedCount: 2}}}
	cleaned := s.sanitized().Toolkit.Injection.Missed
	require.NotContains(t, cleaned[0], "\x1b")
	require.LessOrEqual(t, len(cleaned[1]), maxMissedBytes)
	require.Len(t, given[1], 1000, "the caller's stays as it is")
}
