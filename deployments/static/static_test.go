package static

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the manifests anew")

func TestManifestsAreCurrent(t *testing.T) {
	files, err := Render()
	require.NoError(t, err)
	for name, want := range files {
		if *update {
			require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
		}
		have, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, want, string(have), "%s: run make generate", name)
	}
}
