package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// evidence names the tests that show a claim: the file, and the function.
var evidence = map[string][][2]string{
	"capabilities: Basic Install": {{"test/operator/olm_test.go", "TestOLM"}},
	// A cluster without the internet, to which nodes, operator and operands bring nothing but their images.
	"features.operators.openshift.io/disconnected: true": {{"test/operator/olm_test.go", "TestOLM"}, {"deployments/release/mirror/mirror_test.go", "TestAnArchiveFillsARegistryWithTheSameDigests"}},
	"features.operators.openshift.io/proxy-aware: true":  {{"operator/registry/registry_test.go", "TestTheProxyOfTheEnvironment"}},
	"operatorframework.io/arch.amd64: supported":         {{"test/operator/olm_test.go", "TestOLM"}},
	"operatorframework.io/os.linux: supported":           {{"test/operator/olm_test.go", "TestOLM"}},
}

var claim = regexp.MustCompile(`^(capabilities|features\.operators\.openshift\.io/.*|operatorframework\.io/(arch|os)\..*)$`)

// Whoever adds a claim names the test that shows it.
func TestEveryClaimIsShownByATest(t *testing.T) {
	csv := manifest(t, "gpuready.clusterserviceversion.yaml")
	found := 0
	for _, field := range []string{"annotations", "labels"} {
		for key, value := range at(csv, "metadata", field) {
			if !claim.MatchString(key) || value == "false" {
				continue
			}
			found++
			tests := evidence[key+": "+value.(string)]
			require.NotEmpty(t, tests, "%s: %s: no test shows it", key, value)
			for _, one := range tests {
				text, err := os.ReadFile("../../" + one[0])
				require.NoError(t, err)
				require.Regexp(t, `(?m)^func `+one[1]+`\(t \*testing\.T\)`, string(text), one[0])
			}
		}
	}
	require.GreaterOrEqual(t, found, 4)
}

func TestOnlyImagesWithDigestsAreForDisconnectedClusters(t *testing.T) {
	require.False(t, features("gpuready/operator:v0.2.0")["disconnected"])
	require.True(t, features("ghcr.io/gpuready/operator@sha256:0123")["disconnected"])
	annotations := at(manifest(t, "gpuready.clusterserviceversion.yaml"), "metadata", "annotations")
	require.Equal(t, isPinned(annotations["containerImage"].(string)), annotations["features.operators.openshift.io/disconnected"] == "true")
}

func TestADigestOfTheOperatorIsOfNoOtherImage(t *testing.T) {
	_, err := relatedImages("ghcr.io/gpuready/operator@sha256:0123", object{})
	require.ErrorContains(t, err, "toolkit: the operator's image has a digest, and the operator no variable RELATED_IMAGE_TOOLKIT")
	all, err := relatedImages("gpuready/operator:v1.2.3", object{})
	require.NoError(t, err)
	require.Contains(t, all, object{"name": "toolkit", "image": "gpuready/toolkit:v1.2.3"})
}

func TestARightWithoutAPlaceIsAnError(t *testing.T) {
	_, _, err := operatorRules([]right{{Where: "clusters"}})
	require.ErrorContains(t, err, `where is "clusters"`)
	_, _, err = permissions(nil, nil)
	require.ErrorContains(t, err, "no manifest has the role")
}
