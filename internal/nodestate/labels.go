package nodestate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/pattern"
)

// MaxLabels is how many labels a state may have: those of a node with fifty MIG
// profiles, which no node has.
const MaxLabels = 512

// The form of labels is that which Kubernetes takes (Labels and Selectors, "Syntax
// and character set"): 63 characters for the name behind the prefix, 63 for the value.
const maxLabel = 63

// FeaturePattern is that of the names that the features of GPUs have, but for those
// that begin as ChoicePrefixes do. What else begins with nvidia.com/ chooses how a node
// is configured (mig.config, device-plugin.config): that is not for a device
// plugin to say, let alone for whoever can write its file, and so are the names of
// others. The cluster's policy for the validator has it too.
const FeaturePattern = `^nvidia\.com/((gpu|cuda|gfd|mig-[A-Za-z0-9._-]+)\.[A-Za-z0-9._-]*[A-Za-z0-9]|mig\.capable|mig\.strategy|mps\.capable)$`

var (
	featureName  = pattern.New(FeaturePattern)
	featureValue = pattern.New(`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$`)
)

// ChoicePrefixes begin names by which it is chosen what runs on a node: whether agents
// do, which, and whether for containers or virtual machines
// (github.com/NVIDIA/gpu-operator, controllers/state_manager.go).
var ChoicePrefixes = []string{"nvidia.com/gpu.present", "nvidia.com/gpu.deploy.", "nvidia.com/gpu.workload."}

// IsFeature says whether a label is one of a GPU's features, by its name.
func IsFeature(name string) bool {
	return featureName.Matches(name) &&
		!slices.ContainsFunc(ChoicePrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// labels checks labels that the validator is to put on the Node.
func (v *validation) labels(field string, all map[string]string) {
	if len(all) > MaxLabels {
		v.fail(field, fmt.Sprintf("%d of them, no more than %d are taken", len(all), MaxLabels))
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
		case !featureValue.Matches(value):
			v.fail(at, fmt.Sprintf("%q is not the value of a label", value))
		}
	}
}
