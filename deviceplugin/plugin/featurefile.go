package plugin

import (
	"fmt"
	"path/filepath"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// FeatureFile is the name of the feature file. It is NVIDIA's
// (cmd/gpu-feature-discovery/main.go, --output-file), so that the last file of an
// uninstalled feature discovery is replaced rather than kept for ever.
const FeatureFile = "gfd"

// maxFeatures is the size from which Node Feature Discovery skips a feature file
// (sigs.k8s.io/node-feature-discovery, source/local/local.go).
const maxFeatures = 64000

// writeFeatureFile replaces the feature file in dir, Node Feature Discovery's features.d, and
// creates dir if needed. Readers see either the old labels or the new ones. Its
// temporary file begins with a dot, and such files are skipped.
func writeFeatureFile(dir string, l map[string]string) error {
	text := plan.LabelLines(l)
	if len(text) > maxFeatures {
		return fmt.Errorf("write %s: %d bytes of labels, but Node Feature Discovery skips a file of more than %d; divide the GPUs into fewer profiles",
			filepath.Join(dir, FeatureFile), len(text), maxFeatures)
	}
	return record.Write(filepath.Join(dir, FeatureFile), []byte(text))
}
