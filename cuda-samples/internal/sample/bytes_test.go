package sample

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizesHaveUnits(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "4096": 4096, "64Ki": 64 << 10, "256Mi": 256 << 20, "4Gi": 4 << 30, "1Ti": 1 << 40} {
		var b Bytes
		require.NoError(t, b.Set(text))
		require.Equal(t, want, b)
		var again Bytes
		require.NoError(t, again.Set(b.String()))
		require.Equal(t, want, again)
	}
	for _, text := range []string{"", "Mi", "-1", "1.5Gi", "1G", "16777217Ti", "99999999999999999999"} {
		require.ErrorContains(t, new(Bytes).Set(text), "is not a size", text)
	}
}
