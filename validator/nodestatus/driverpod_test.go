package nodestatus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/validator/check"
)

// withDriverPod returns the facts of a healthy node with a result of the driver's pod.
func withDriverPod(o *check.Outcome) Facts {
	f := facts()
	f.DriverPod = o
	return f
}

func TestTheDriversPodAffectsOnlyEvents(t *testing.T) {
	s := newStage(t)
	failed, passed := check.Fail("WorkloadFailed", "vectorAdd in the pod nvidia-driver-validation ended with 3", "see its log"), check.Outcome{Kind: check.Passed}
	s.publish(withDriverPod(&passed))
	s.settled()
	require.Empty(t, s.events())
	s.publish(withDriverPod(&failed))
	require.Equal(t, ReasonReady, s.condition().Reason)
	s.clock.advance(transientGrace - time.Second)
	s.publish(withDriverPod(nil))
	s.clock.advance(time.Minute)
	s.settled()
	require.Empty(t, s.events(), "the proof was withdrawn")

	s.publish(withDriverPod(&failed))
	s.clock.advance(transientGrace)
	s.until(func() bool { return len(s.events()) == 1 })
	require.Equal(t, "Warning WorkloadFailed 1× vectorAdd in the pod nvidia-driver-validation ended with 3; see its log; no layer depends on it", s.events()[0])
	s.publish(withDriverPod(nil))
	s.settled()
	require.Len(t, s.events(), 1, "what is not known is not over")
	s.publish(withDriverPod(&passed))
	s.until(func() bool { return len(s.events()) == 2 })
	require.Equal(t, "Normal Proven 1× vectorAdd passed on every GPU in the pod nvidia-driver-validation (was: WorkloadFailed)", s.events()[1])
	require.Equal(t, ReasonReady, s.condition().Reason)
}
