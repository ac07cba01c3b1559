package nodestatus

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// TestTheMessageBeginsWithTheLayer tests the contract of docs/validator.md with the readers
// of the condition, such as the operator: it names the layer that is not proven, and the
// layers before it are proven.
func TestTheMessageBeginsWithTheLayer(t *testing.T) {
	layer := func(c Condition) string {
		at, _, _ := strings.Cut(c.Message, ": ")
		return at
	}
	for i, l := range readiness.Layers() {
		failed := facts().refused(l, "Broken").condition()
		require.Equal(t, "False", string(failed.Status))
		require.Equal(t, "Broken", failed.Reason)
		require.Equal(t, string(l), layer(failed))

		f := facts()
		f.Outcomes[i] = check.Outcome{Layer: l, Kind: check.Pending, NotReady: &readiness.NotReady{Reason: "WorkloadRunning", Message: "a pod is on its way"}}
		pending := f.condition()
		require.Equal(t, "Unknown", string(pending.Status))
		require.Equal(t, ReasonProving, pending.Reason)
		require.Equal(t, string(l), layer(pending))
	}
	for _, l := range readiness.Optional() {
		f := facts()
		o := check.Fail("Broken", "it is broken", "mend it")
		o.Layer = l
		f.Outcomes = append(f.Outcomes, o)
		require.Equal(t, string(l), layer(f.condition()), "all layers of the road are proven")
	}
	for _, f := range []Facts{{}, noGPU(), facts(), facts().broken(1, "XID", "XID 79", time.Time{})} {
		require.False(t, slices.Contains(readiness.Layers(), readiness.Layer(layer(f.condition()))), f.condition().Message)
	}
}
