package nodestate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// MaxLabels bounds the labels of a state. It suffices for a node with fifty MIG
// profiles, more than any node has.
const MaxLabels = 512

// maxLabel is Kubernetes' limit on a label's name without its prefix, and on its
// value, in characters (Labels and Selectors, "Syntax and character set").
const maxLabel = 63

// FeaturePattern matches the names of GPU feature labels; names with one of
// ChoicePrefixes are excluded separately. Other nvidia.com/ labels select a node's
// configuration (mig.config, device-plugin.config). A device plugin must not set
// those or other vendors' labels, nor must anyone who can write its file. The
// cluster's policy for the validator contains this pattern too.
const FeaturePattern = `^nvidia\.com/((gpu|cuda|gfd|mig-[A-Za-z0-9._-]+)\.[A-Za-z0-9._-]*[A-Za-z0-9]|mig\.capable|mig\.strategy|mps\.capable)$`

// featureName and featureValue match the names and values of GPU feature labels. They are
// compiled on first use, since most programs that link this package check no labels.
var (
	featureName  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(FeaturePattern) })
	featureValue = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$`)
	})
)

// ChoicePrefixes are the prefixes of labels that select what runs on a node: whether
// agents run, which ones, whether for containers or virtual machines, and who offers the GPUs
// (github.com/NVIDIA/gpu-operator, controllers/state_manager.go).
var ChoicePrefixes = []string{"nvidia.com/gpu.present", "nvidia.com/gpu.deploy.", "nvidia.com/gpu.workload.", ServeLabel}

// IsFeature reports whether name is the label of a GPU feature.
func IsFeature(name string) bool {
	return featureName().MatchString(name) &&
		!slices.ContainsFunc(ChoicePrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// labels checks the labels that the validator will set on the Node.
func (v *validation) labels(field string, all map[string]string) {
	if len(all) > MaxLabels {
		v.fail(field, fmt.Sprintf("%d labels, at most %d are allowed", len(all), MaxLabels))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		at := fmt.Sprintf("%s[%.80q]", field, name)
		switch value := all[name]; {
		case !IsFeature(name):
			v.fail(at, "not the label of a GPU's feature")
		case len(name)-len("nvidia.com/") > maxLabel:
			v.fail(at, fmt.Sprintf("longer than %d bytes behind its prefix", maxLabel))
		case len(value) > maxLabel:
			v.fail(at, fmt.Sprintf("a value longer than %d bytes", maxLabel))
		case !featureValue().MatchString(value):
			v.fail(at, fmt.Sprintf("%q is not the value of a label", value))
		}
	}
}

// IsGPUResource reports whether a resource of a Node is one of GPUs, MIG devices or shares of them. What
// follows the prefix is arbitrary, as the device plugin's configuration may rename them, but for the
// NICs of NVIDIA's Network Operator, as its documentation names them.
func IsGPUResource(name string) bool {
	return strings.HasPrefix(name, "nvidia.com/") && name != "nvidia.com/hostdev"
}
