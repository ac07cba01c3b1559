package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseReleaseAcceptsVersionsAsRuntimesReportThem(t *testing.T) {
	for version, want := range map[string]Release{
		"1.7.24": {1, 7}, "v2.0.0-rc.1": {2, 0}, "1.6.20~ds1": {1, 6}, "1.34": {1, 34}, "1.7x": {1, 7},
	} {
		got, ok := ParseRelease(version)
		require.True(t, ok, version)
		require.Equal(t, want, got)
	}
	for _, version := range []string{"", "2", "two.one", "12345.1", "-1.2"} {
		_, ok := ParseRelease(version)
		require.False(t, ok, version)
	}
	require.True(t, Release{2, 0}.AtLeast(1, 24))
	require.True(t, Release{1, 24}.AtLeast(1, 24))
	require.False(t, Release{1, 23}.AtLeast(1, 24))
}
