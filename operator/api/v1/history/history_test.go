package history

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

const definition = `
spec:
  versions:
  - name: v1
    storage: true
    schema:
      openAPIV3Schema:
        properties:
          spec:
            properties:
              driver:
                properties:
                  version: {type: string}
                  labels: {type: object, additionalProperties: {type: string}}
                  env: {type: array, items: {properties: {name: {type: string}}}}
                  affinity: {properties: {nodeAffinity: {type: object}}}
              mig: {type: object, properties: {strategy: {type: string}}}
`

func TestFieldsOfADefinition(t *testing.T) {
	paths, err := Paths([]byte(definition))
	require.NoError(t, err)
	require.Equal(t, []string{"driver", "driver.affinity", "driver.affinity.nodeAffinity", "driver.env[]", "driver.env[].name", "driver.labels.*", "driver.version", "mig", "mig.strategy"}, paths)
	_, err = Paths([]byte("spec: {versions: []}"))
	require.ErrorContains(t, err, "no definition")
}

func TestReleasesAreAddedInAnyOrder(t *testing.T) {
	h := &History{}
	h.Add("v1.11.0", []string{"driver", "driver.version", "driver.affinity.nodeAffinity"})
	h.Add("v1.9.1", []string{"driver", "psp"})
	h.Add("v25.3.0", []string{"driver", "driver.version"})
	require.Equal(t, []string{"v1.9.1", "v1.11.0", "v25.3.0"}, h.Releases)
	require.Equal(t, []Field{{"driver", "v1.9.1", "v25.3.0"}, {"driver.version", "v1.11.0", "v25.3.0"}, {"psp", "v1.9.1", "v1.9.1"}}, h.Fields)
	require.Equal(t, "since v1.11.0", h.Describe("driver.version"))
	require.Equal(t, "since v1.9.1", h.Describe("driver"))
	require.Equal(t, "v1.9.1", h.Describe("psp"))
	require.Empty(t, h.Describe("driver.vers"))
	again, err := Parse(h.String())
	require.NoError(t, err)
	require.Equal(t, h, again)
}

func TestRecordedHistoryIsInOrder(t *testing.T) {
	h, err := Load()
	require.NoError(t, err)
	require.Equal(t, recorded, h.String(), "it is written by the command record")
	require.True(t, slices.IsSortedFunc(h.Releases, Compare))
	require.Contains(t, h.Releases, "v1.8.0")
	require.Equal(t, "since v24.6.0", h.Describe("hostPaths"))
	require.Equal(t, "v1.3.1 to v1.7.1", h.Describe("toolkit.tolerations"))
	for _, line := range []string{"a", "a v1.0.0 v2.0.0"} {
		_, err := Parse(line)
		require.Error(t, err, line)
	}
}
