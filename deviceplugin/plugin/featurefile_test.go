package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/plan"
)

func TestFeatureFileIsReplacedAtomically(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "features.d")
	l := map[string]string{"nvidia.com/gpu.product": "x", "nvidia.com/gpu.count": "8", "nvidia.com/mig.capable": "true"}
	require.NoError(t, writeFeatureFile(dir, l))
	path := filepath.Join(dir, FeatureFile)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, plan.LabelLines(l), string(data))
	require.Contains(t, string(data), "nvidia.com/gpu.count=8\n")

	require.NoError(t, writeFeatureFile(dir, map[string]string{"nvidia.com/gpu.count": "1"}))
	data, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "nvidia.com/gpu.count=1\n", string(data))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	long := map[string]string{}
	for len(plan.LabelLines(long)) <= 64000 {
		long["nvidia.com/gpu."+strings.Repeat("x", len(long)/100)+string(rune('a'+len(long)%26))+strings.Repeat("y", len(long)%100)] = strings.Repeat("x", 63)
	}
	require.ErrorContains(t, writeFeatureFile(dir, long), path)
	data, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "nvidia.com/gpu.count=1\n", string(data), "the old ones stay")
}
