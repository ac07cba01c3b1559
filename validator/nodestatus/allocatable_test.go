package nodestatus

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

const gpuResource corev1.ResourceName = "nvidia.com/gpu"

// offering returns the facts of a node whose kubelet can allocate some devices.
func offering(devices int) Facts {
	f := facts()
	for i, o := range f.Outcomes {
		if o.Layer == readiness.Plugin {
			f.Outcomes[i].Allocatable = map[string]int{string(gpuResource): devices}
		}
	}
	return f
}

// kubelet writes the Node's status as the kubelet does.
func (s *stage) kubelet(capacity, allocatable int64) {
	s.server.Node(node, func(n *corev1.Node) {
		n.Status.Capacity = corev1.ResourceList{gpuResource: *resource.NewQuantity(capacity, resource.DecimalSI), "cpu": resource.MustParse("2")}
		n.Status.Allocatable = corev1.ResourceList{gpuResource: *resource.NewQuantity(allocatable, resource.DecimalSI), "cpu": resource.MustParse("2")}
	})
}

// reported returns capacity and allocatable of the Node.
func (s *stage) reported() [2]int64 {
	n := s.server.Node(node, nil)
	capacity, allocatable := n.Status.Capacity[gpuResource], n.Status.Allocatable[gpuResource]
	return [2]int64{capacity.Value(), allocatable.Value()}
}

func TestAllocatableDevicesAreWrittenAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*stage)
		want   [2]int64
	}{
		"a node that never had any":              {func(*stage) {}, [2]int64{8, 8}},
		"a plugin that has gone":                 {func(s *stage) { s.kubelet(8, 0) }, [2]int64{8, 8}},
		"one with more devices, some broken":     {func(s *stage) { s.kubelet(9, 0) }, [2]int64{9, 8}},
		"the kubelet was faster":                 {func(s *stage) { s.kubelet(9, 7) }, [2]int64{9, 7}},
		"another resource is there and not ours": {func(s *stage) { s.kubelet(0, 0) }, [2]int64{8, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			c.before(s)
			s.publish(offering(8))
			require.Equal(t, c.want, s.reported())
		})
	}
}

// Once the kubelet has written the number, the Publisher leaves it, even when it writes the
// conditions again.
func TestTheKubeletsAllocatableIsNotChanged(t *testing.T) {
	s := newStage(t)
	s.publish(offering(8))
	s.kubelet(8, 0)
	s.clock.advance(2 * heartbeat)
	s.publish(offering(8))
	require.Equal(t, [2]int64{8, 0}, s.reported())
	s.publish(facts()) // the accounts do not agree: a plugin has gone
	s.publish(offering(6))
	require.Equal(t, [2]int64{8, 6}, s.reported(), "another one has come")
}

func TestARefusedAllocatableDelaysNothing(t *testing.T) {
	s := newStage(t)
	var patches atomic.Int32
	seen := make(chan struct{})
	release := sync.OnceFunc(func() { close(seen) })
	defer release() // the server waits for the handler
	s.server.Fail(func(r *http.Request) *kubetest.Fault {
		if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/status") {
			return nil
		}
		switch patches.Add(1) {
		case 1:
			return &kubetest.Fault{Status: http.StatusForbidden}
		case 2: // the condition
		default: // the next attempt
			select {
			case <-seen:
			case <-r.Context().Done():
			}
		}
		return nil
	})
	s.publisher.Publish(offering(8))
	s.until(func() bool { return s.server.Condition(node, ConditionType) != nil })
	require.Equal(t, [2]int64{0, 0}, s.reported(), "it was refused, and the condition did not wait for it")
	release()
	s.until(func() bool { return s.reported() == [2]int64{8, 8} })
}
