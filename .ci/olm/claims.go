package main

import "strings"

// What the bundle claims, in catalogs and consoles, is what a test has shown: claims_test.go names the
// test for each.
const (
	// capabilities is the operator's level in the capability model of the Operator Lifecycle Manager (OLM). Higher
	// levels, in order: Seamless Upgrades (needs a test in which OLM upgrades the operator), Full Lifecycle, Deep
	// Insights.
	capabilities = "Basic Install"
	// maturity names the state of the channel: alpha until the operator has run on a cluster with real GPUs.
	maturity = "alpha"
)

// features returns which features of OpenShift's catalog the bundle claims, by the end of the annotation's key.
func features(operatorImage string) map[string]bool {
	return map[string]bool{
		"disconnected":     isPinned(operatorImage),
		"fips-compliant":   false,
		"proxy-aware":      true,
		"tls-profiles":     false,
		"token-auth-aws":   false,
		"token-auth-azure": false,
		"token-auth-gcp":   false,
	}
}

// isPinned reports whether an image is named by its digest. A cluster without Internet access
// pulls only such an image from the mirror of its catalog.
func isPinned(image string) bool { return strings.Contains(image, "@sha256:") }

// architectures lists the node architectures on which the operator has run. Its images for arm64 have run
// only under emulation, on no real node.
func architectures() []string { return []string{"amd64"} }

// addClaims adds the claims, but for maturity, to the annotations and labels of a ClusterServiceVersion.
func addClaims(annotations, labels object, operatorImage string) {
	annotations["capabilities"] = capabilities
	for name, claimed := range features(operatorImage) {
		value := "false"
		if claimed {
			value = "true"
		}
		annotations["features.operators.openshift.io/"+name] = value
	}
	for _, arch := range architectures() {
		labels["operatorframework.io/arch."+arch] = "supported"
	}
	labels["operatorframework.io/os.linux"] = "supported"
}
