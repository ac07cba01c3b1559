package status

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// An incrementally updated tally equals a new count of all nodes.
func TestTallyEqualsARecount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kept, nodes := NewTally(), map[string]Node{}
		for range rapid.IntRange(0, 60).Draw(t, "changes") {
			name := fmt.Sprint("n", rapid.IntRange(0, 7).Draw(t, "name"))
			was := kept.nodes[name]
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				delete(nodes, name)
				require.Same(t, was, kept.Remove(name))
				continue
			}
			n := node(name, rapid.SampledFrom([]progress.Status{progress.Ready, progress.Waiting, progress.Failed, progress.Unknown, progress.Excluded}).Draw(t, "status"), "x")
			n.Since = rapid.SampledFrom([]time.Time{{}, now, now.Add(time.Minute)}).Draw(t, "since")
			n.Labels = map[string]string{label.UpgradeState: rapid.SampledFrom([]string{"", "upgrade-failed"}).Draw(t, "upgrade")}
			if rapid.Bool().Draw(t, "core") {
				n.Pool = core
			}
			if rapid.Bool().Draw(t, "beside") {
				n.Others = []progress.PodProblem{{State: progress.DCGM}}
			}
			nodes[name] = n
			require.Same(t, was, kept.Add(n))
		}
		anew := tallyOf(slices.Collect(maps.Values(nodes))...)
		require.ElementsMatch(t, anew.Groups(), kept.Groups())
		require.Equal(t, anew.Upgrades(), kept.Upgrades())
		a, b := anew.counts(), kept.counts()
		slices.Sort(a.beside)
		slices.Sort(b.beside)
		require.Equal(t, a, b)
	})
}
