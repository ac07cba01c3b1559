package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// BenchmarkANodeEvent measures one changed Node of 5,000, without requests.
func BenchmarkANodeEvent(b *testing.B) {
	w := newWorld(b)
	w.create(simulated("policy"))
	for i := range 5000 {
		n := gpuNode(fmt.Sprintf("n%d", i), label.Kernel, fmt.Sprint("5.15.", i%4))
		n.ResourceVersion = "1"
		updateNode(w.model, n)
	}
	updatePolicy(w.model, w.policy("policy"))
	settle := func() {
		w.now = w.now.Add(time.Minute)
		w.runDue(b.Context())
		for name, on := range w.model.nodes {
			if on.sent == nil {
				continue
			}
			n := gpuNode(name, label.Kernel, on.node.Pool.Kernel)
			n.Annotations = map[string]string{}
			n.ResourceVersion = "2"
			patched(n, on.sent)
			sent := on.sent
			updateNode(w.model, n)
			w.model.completePatch(name, sent, n.ResourceVersion)
			w.writer.set(name, nil)
		}
	}
	settle()
	settle()
	b.ResetTimer()
	for i := range b.N {
		n := gpuNode("n7", label.Kernel, "5.15.3")
		on := w.model.nodes["n7"].node
		n.Labels, n.Annotations = on.Labels, on.Annotations
		n.ResourceVersion = fmt.Sprint(3 + i)
		n.Spec.Unschedulable = i%2 == 0
		updateNode(w.model, n)
		w.now = w.now.Add(PassEvery)
		w.runDue(b.Context())
	}
}

func patched(n *corev1.Node, p *upgrade.Patch) {
	for key, value := range p.Labels {
		if value != nil {
			n.Labels[key] = *value
		}
	}
	for key, value := range p.Annotations {
		if value != nil {
			n.Annotations[key] = *value
		}
	}
}
