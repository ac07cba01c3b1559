package validator

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/e2e"
)

// upgrades counts how often all agents are replaced.
const upgrades = 3

// upgradeUnderJobs replaces validator, toolkit and device plugin at once, as the upgrade of a chart does,
// while jobs hold all GPUs and have filled their memory. No condition becomes False, no taint appears, no job
// ends, and nothing is computed.
func upgradeUnderJobs(t *testing.T, n *node) {
	n.until(t, "all is well", n.ready)
	n.environment(t, "STARTUP_TAINT_MANAGE=true", "STARTUP_TAINT_SETTLE=100ms")
	var jobs []*corev1.Pod
	for i := range n.gpus {
		j := e2e.Job{Name: fmt.Sprintf("trains-%d", i), Node: n.name, GPUs: 1, Command: []string{"vectoradd", "--for", "2h", "--every", "1h"}}
		n.occupy(t, j)
		n.until(t, j.Name+" has computed, and holds its memory", func() error {
			out, err := n.TryKubectl(t, "logs", j.Name)
			if err == nil && !strings.Contains(out, "Copy output") {
				err = fmt.Errorf("it says %q", out)
			}
			return err
		})
		jobs = append(jobs, n.World.Pod("default", j.Name))
	}
	// The node is left as it was found, also after a failure.
	t.Cleanup(func() { n.gpusim(t, "load", "--gpu", "all", "--memory-used", "0") })
	n.gpusim(t, "load", "--gpu", "all", "--memory-used", "all")
	bad := n.watchTrouble(t)
	for range upgrades {
		var was []string
		for _, name := range []string{toolkit, plugin, validator} {
			was = append(was, string(n.pod(name).UID))
			n.Kubectl(t, "-n", e2e.Namespace, "rollout", "restart", "daemonset/"+name)
		}
		n.until(t, "all agents are replaced, and all layers are proven", func() error {
			for i, name := range []string{toolkit, plugin, validator} {
				if p := n.pod(name); p == nil || string(p.UID) == was[i] {
					return fmt.Errorf("%s is not replaced", name)
				}
			}
			if err := provenWithoutAPod("AllAllocated")(t, n); err != nil {
				return err
			}
			return n.logged(t, "layer=cuda", "vectorAdd on 8 of 8 GPUs", ", proven ")
		})
	}
	assert.Empty(t, bad(), "conditions that were False, and taints")
	s, err := n.layer(readiness.CUDA)
	require.NoError(t, err)
	require.NotNil(t, s.Proof, "%+v", s.NotReady)
	assert.Equal(t, n.gpus, s.Proof.GPUs)
	for _, job := range jobs {
		now := n.World.Pod("default", job.Name)
		if assert.NotNil(t, now, job.Name) {
			assert.Equal(t, job.UID, now.UID)
			assert.Equal(t, corev1.PodRunning, now.Status.Phase)
			assert.Zero(t, now.Status.ContainerStatuses[0].RestartCount)
		}
		n.delete(t, "default", job.Name)
	}
	n.gpusim(t, "load", "--gpu", "all", "--memory-used", "0")
	n.environment(t, "STARTUP_TAINT_MANAGE-", "STARTUP_TAINT_SETTLE-")
}

// watchTrouble watches the Node from now on. The returned function ends that, and returns each of our
// conditions that was False and each taint.
func (n *node) watchTrouble(t *testing.T) (end func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w, err := n.World.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", n.name).String()})
	require.NoError(t, err)
	var mu sync.Mutex
	var found []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			changed, is := e.Object.(*corev1.Node)
			if !is {
				continue
			}
			mu.Lock()
			for _, c := range changed.Status.Conditions {
				if strings.HasPrefix(string(c.Type), "GPU") && c.Status == corev1.ConditionFalse {
					found = append(found, fmt.Sprintf("%s: %s: %s", c.Type, c.Reason, c.Message))
				}
			}
			for _, taint := range changed.Spec.Taints {
				found = append(found, fmt.Sprintf("%+v", taint))
			}
			mu.Unlock()
		}
	}()
	return func() []string {
		w.Stop()
		<-ended
		mu.Lock()
		defer mu.Unlock()
		return found
	}
}
