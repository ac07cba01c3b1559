package labels

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// FileName is that of the feature file. It is the reference's
// (cmd/gpu-feature-discovery/main.go, --output-file), so that the last file of an
// uninstalled feature discovery is replaced and does not say its labels for ever.
const FileName = "gfd"

// maxFeatures is the size from which on Node Feature Discovery passes a feature
// file over (sigs.k8s.io/node-feature-discovery, source/local/local.go).
const maxFeatures = 64000

// Text are the labels as a feature file has them, a line for each, sorted: the
// same labels are the same bytes.
func Text(l map[string]string) string {
	var text strings.Builder
	for _, name := range names(l) {
		fmt.Fprintf(&text, "%s=%s\n", name, l[name])
	}
	return text.String()
}

// Write replaces the feature file in dir, Node Feature Discovery's features.d,
// which it makes where it is missing. Readers see the old labels or the new ones.
// While it writes there is a file beside that begins with a dot: such are passed over.
func Write(dir string, l map[string]string) error {
	text := Text(l)
	if len(text) > maxFeatures {
		return fmt.Errorf("write %s: %d bytes of labels, and Node Feature Discovery passes over a file of more than %d; divide the GPUs into fewer profiles",
			filepath.Join(dir, FileName), len(text), maxFeatures)
	}
	return record.Write(filepath.Join(dir, FileName), []byte(text))
}
