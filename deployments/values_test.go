package deployments_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
)

func TestForeignValuesAreFollowedOrHaveAReason(t *testing.T) {
	all, err := deployments.ForeignValues()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	schema, err := schematest.Load()
	require.NoError(t, err)
	fields := schema.Fields()
	var seen []string
	for _, v := range all {
		require.NotContains(t, seen, v.Key)
		require.False(t, slices.ContainsFunc(seen, func(key string) bool { return strings.HasPrefix(key, v.Key+".") }), "%s includes an entry above it", v.Key)
		seen = append(seen, v.Key)
		require.False(t, slices.ContainsFunc(fields, func(field string) bool { return (field + ".")[:min(len(field)+1, len(v.Key)+1)] == v.Key+"." }),
			"%s is a field of the policy now: remove it here", v.Key)
		require.True(t, v.As != "" || v.Why != "" || v.By != "", v.Key)
		if v.Why == "" {
			require.Empty(t, v.Do, v.Key)
			require.Empty(t, v.When, v.Key)
		}
		require.False(t, strings.HasSuffix(v.Why+v.Do, "."), v.Key)
	}
}
