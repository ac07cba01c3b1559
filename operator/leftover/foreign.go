package leftover

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/operator/label"
)

// ownManagers are the field managers of the operator and the validator on Nodes.
var ownManagers = []string{label.FieldManager, "gpu-validator"}

// foreign has the labels and conditions of a Node that somebody other than the operator and the validator
// owns, even if these own them, too. The maps go from a label's key and a condition's type to the field manager.
type foreign struct{ labels, conditions map[string]string }

func readForeign(node *corev1.Node) foreign {
	found := foreign{map[string]string{}, map[string]string{}}
	for _, entry := range node.ManagedFields {
		if entry.FieldsV1 == nil || slices.Contains(ownManagers, entry.Manager) {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
			Status struct {
				Conditions map[string]json.RawMessage `json:"f:conditions"`
			} `json:"f:status"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // the API server has written it, so it can always be read
		}
		// f:NAME is a field, and k:{"type":…} an element of a list by its key.
		for field := range fields.Metadata.Labels {
			if key, is := strings.CutPrefix(field, "f:"); is {
				found.labels[key] = entry.Manager
			}
		}
		for field := range fields.Status.Conditions {
			var condition struct{ Type string }
			if key, is := strings.CutPrefix(field, "k:"); is && json.Unmarshal([]byte(key), &condition) == nil {
				found.conditions[condition.Type] = entry.Manager
			}
		}
	}
	return found
}
