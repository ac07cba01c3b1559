package nodestatus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// autoscaled is a key that the Cluster Autoscaler recognises by its prefix.
const autoscaled = "startup-taint.cluster-autoscaler.kubernetes.io/gpu-not-ready"

func (s *stage) taints() (keys []string) {
	for _, t := range s.server.Node(node, nil).Spec.Taints {
		keys = append(keys, t.Key+":"+string(t.Effect))
	}
	return keys
}

// manage restarts with a Publisher that puts the taint back.
func (s *stage) manage(keys ...string) {
	s.t.Helper()
	s.taint = Taint{Keys: keys, Manage: true, Settle: time.Minute}
	s.start()
}

func proving() Facts {
	f := facts()
	f.Outcomes[3] = check.Outcome{Layer: readiness.Plugin, Kind: check.Pending, NotReady: &readiness.NotReady{Reason: "WorkloadRunning", Message: "a pod is on its way"}}
	return f
}

func refusedPlugin() Facts { return facts().refused(readiness.Plugin, "DevicePluginSilent") }

func TestEachStartupTaintIsRemoved(t *testing.T) {
	for _, key := range []string{taint, "gpuready.io/not-ready"} {
		s := newStage(t)
		s.server.Node(node, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Effect: "NoSchedule"}} })
		s.publish(facts())
		require.Empty(t, s.taints(), key)
	}
	s := newStage(t)
	s.taint = Taint{}
	s.start()
	s.server.Node(node, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: taint, Effect: "NoSchedule"}} })
	s.publish(facts())
	require.Len(t, s.taints(), 1, "none is asked for")
}

func TestTheManagedTaintComesBackWhenALayerStaysRefused(t *testing.T) {
	for _, key := range []string{taint, autoscaled, "example.com/gpus"} {
		s := newStage(t)
		s.manage(key)
		s.server.Node(node, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "theirs", Effect: "NoExecute"}, {Key: key, Effect: "NoSchedule"}}
		})
		s.publish(facts())
		require.Equal(t, []string{"theirs:NoExecute"}, s.taints())
		s.publish(refusedPlugin())
		require.Equal(t, []string{"theirs:NoExecute"}, s.taints(), "at once")
		s.until(func() bool { return len(s.taints()) == 2 })
		require.Equal(t, []string{"theirs:NoExecute", key + ":NoSchedule"}, s.taints())
		s.publish(facts())
		require.Equal(t, []string{"theirs:NoExecute"}, s.taints(), "as soon as they are proven")
	}
}

func TestTheManagedTaintIsAddedToANodeWithoutIt(t *testing.T) {
	s := newStage(t)
	s.manage(taint)
	s.publish(refusedPlugin())
	s.until(func() bool { return len(s.taints()) == 1 })
}

func TestAShortUnreadinessPutsNoTaintBack(t *testing.T) {
	s := newStage(t)
	s.manage(taint)
	for range 5 { // a plugin that restarts, again and again
		s.publish(facts())
		s.publish(refusedPlugin())
		s.clock.advance(50 * time.Second)
		s.publish(proving())
		s.clock.advance(time.Hour)
		s.publish(proving())
	}
	s.publish(Facts{})
	s.clock.advance(time.Hour)
	s.publish(Facts{})
	s.publish(noGPU())
	s.clock.advance(time.Hour)
	s.publish(noGPU())
	require.Empty(t, s.taints())
}

func TestPendingProofsDoNotDelayTheTaint(t *testing.T) {
	s := newStage(t)
	s.manage(taint)
	s.publish(facts())
	for range 2 {
		s.publish(refusedPlugin())
		s.publish(proving())
		s.clock.advance(30 * time.Second)
	}
	require.Empty(t, s.taints(), "the last proof is on its way")
	s.publish(refusedPlugin())
	require.Len(t, s.taints(), 1)
	s.publish(proving())
	require.Len(t, s.taints(), 1, "it goes when they are proven")
}
