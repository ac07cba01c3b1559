package validator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpuready/gpuready/internal/readiness"
)

// warm registers the device plugin repeatedly, and prints the time from there until all layers are proven,
// the last one by a pod.
func warm(t *testing.T, n *node) {
	const rounds = 5
	n.until(t, "all is well", n.ready)
	var took []time.Duration
	for range rounds {
		n.unregister(t)
		n.until(t, "the plugin's layer is refused", func() error { return n.refused(readiness.Plugin, "NoKubelet") })
		began := time.Now()
		n.register(t)
		n.until(t, "all is well again", n.ready)
		s, err := n.layer(readiness.Plugin)
		if err != nil || s.Proof == nil {
			t.Fatalf("the proof is gone: %v", err)
		}
		took = append(took, s.Proof.Time.Sub(began))
	}
	slices.Sort(took)
	fmt.Printf("\nFrom the kubelet's socket, for the device plugin to register with, to all layers proven, a pod's run included (goal 3 s):\n"+
		"%d rounds, shortest %.1f s, median %.1f s, longest %.1f s\n\n", rounds, took[0].Seconds(), took[rounds/2].Seconds(), took[rounds-1].Seconds())
}
