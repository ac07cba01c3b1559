package main

import "strings"

// What the bundle claims, in catalogs and consoles, is what a test has shown: claims_test.go names the
// test for each.
const (
	// capabilities is the level of the operator's maturity. The next ones are Seamless Upgrades, for which the
	// Operator Lifecycle Manager must have upgraded the operator, and Full Lifecycle, before Deep Insights.
	capabilities = "Basic Install"
	// maturity is alpha until the operator has run on a cluster with real GPUs.
	maturity = "alpha"
)

// features returns annotations for OpenShift's catalog.
func features(operator string) map[string]bool {
	return map[string]bool{
		"disconnected":     isPinned(operator),
		"fips-compliant":   false,
		"proxy-aware":      true,
		"tls-profiles":     false,
		"token-auth-aws":   false,
		"token-auth-azure": false,
		"token-auth-gcp":   false,
	}
}

// isPinned reports whether an image is named by its digest. A cluster finds only such an image in the
// mirror of a catalog.
func isPinned(image string) bool { return strings.Contains(image, "@sha256:") }

// architectures lists the node architectures on which the operator has run. Its images for arm64 have run
// under emulation, on no node.
func architectures() []string { return []string{"amd64"} }

// addClaims adds the claims to the annotations and labels of a ClusterServiceVersion.
func addClaims(annotations, labels object, operator string) {
	annotations["capabilities"] = capabilities
	for name, shown := range features(operator) {
		value := "false"
		if shown {
			value = "true"
		}
		annotations["features.operators.openshift.io/"+name] = value
	}
	for _, arch := range architectures() {
		labels["operatorframework.io/arch."+arch] = "supported"
	}
	labels["operatorframework.io/os.linux"] = "supported"
}
