package status

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// Waiting returns what up to MaxWaiting nodes in a driver upgrade wait for. Nodes whose pods
// may not be evicted come first, since they do not continue without help. Both maps have
// reasons by node; a node in both is listed as blocked.
func Waiting(waiting, blocked map[string]string) (some []v1.UpgradeWait) {
	for _, node := range slices.Sorted(maps.Keys(blocked)) {
		some = append(some, newUpgradeWait(node, blocked[node]))
	}
	for _, node := range slices.Sorted(maps.Keys(waiting)) {
		if _, is := blocked[node]; !is {
			some = append(some, newUpgradeWait(node, waiting[node]))
		}
	}
	return some[:min(len(some), v1.MaxWaiting)]
}

func newUpgradeWait(node, why string) v1.UpgradeWait {
	return v1.UpgradeWait{Node: node, Message: record.Clean(why, maxLine)}
}

// waitingExamples names the first nodes and what they wait for, as the end of a sentence.
func waitingExamples(all []v1.UpgradeWait) string {
	var text strings.Builder
	for _, w := range all[:min(len(all), maxNamed)] {
		text.WriteString("; " + w.Node + ": " + w.Message)
	}
	return text.String()
}
