package step

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const gpu corev1.ResourceName = "nvidia.com/gpu"

// fixture feeds a Tracker with the changes of an API server, at a settable time.
type fixture struct {
	*Tracker
	now time.Duration
}

func newFixture() *fixture {
	return &fixture{Tracker: &Tracker{Resource: gpu, Selectors: DefaultSelectors(), Sample: "run-1"}}
}

func (s *fixture) after(d time.Duration) *fixture { s.now = d; return s }

func (s *fixture) node(n *corev1.Node) { s.Observe(Change{At: s.now, Node: n.DeepCopy()}) }
func (s *fixture) pod(p *corev1.Pod)   { s.Observe(Change{At: s.now, Pod: p.DeepCopy()}) }

func someNode(boot string, capacity, allocatable int64, ready corev1.ConditionStatus, conditions ...corev1.NodeCondition) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"feature.node.kubernetes.io/pci-0302_10de.present": "true"}}}
	n.Status.NodeInfo.BootID = boot
	n.Status.Capacity = corev1.ResourceList{gpu: *resource.NewQuantity(capacity, resource.DecimalSI)}
	n.Status.Allocatable = corev1.ResourceList{gpu: *resource.NewQuantity(allocatable, resource.DecimalSI)}
	n.Status.Conditions = append(conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: ready})
	return n
}

// somePod returns a pod of an app, with its container in a state.
func somePod(uid, app, container string, state corev1.ContainerState, conditions ...corev1.PodConditionType) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Namespace: "ns", Labels: map[string]string{"app": app}}}
	p.Spec.NodeName = "n"
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: "example/" + app}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: container, State: state}}
	for _, c := range conditions {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
	}
	return p
}

var running = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}

func workload(state corev1.ContainerState) *corev1.Pod {
	p := somePod("w", "", "w1", state, corev1.PodScheduled)
	p.Labels[WorkloadLabel] = "run-1"
	return p
}

func pulled(uid string) *corev1.Event {
	return &corev1.Event{Reason: "Pulled", InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: types.UID(uid)}}
}

// at returns when a step was reached, or -1.
func at(t Timeline, id ID) float64 {
	r, has := t.Find(id)
	if !has {
		return -1
	}
	return r.At
}

func TestNVIDIAsStackReachesEachStep(t *testing.T) {
	s := newFixture()
	s.Begin()
	s.after(2 * time.Second).node(someNode("b", 0, 0, corev1.ConditionFalse))
	s.after(3 * time.Second).node(someNode("b", 0, 0, corev1.ConditionTrue))
	s.after(4 * time.Second).pod(somePod("d", "nvidia-driver-daemonset", "", corev1.ContainerState{}, corev1.PodScheduled))
	s.after(5 * time.Second).Observe(Change{At: s.now, Event: pulled("d")})
	s.after(6 * time.Second).pod(somePod("d", "nvidia-driver-daemonset", "d1", running, corev1.PodScheduled))
	s.after(7 * time.Second).Observe(Change{At: s.now, Event: pulled("d")}) // another container's
	s.after(8 * time.Second).pod(somePod("d", "nvidia-driver-daemonset", "d1", running, corev1.PodScheduled, corev1.PodReady))
	s.after(9 * time.Second).pod(somePod("t", "nvidia-container-toolkit-daemonset", "t1", running, corev1.PodScheduled, corev1.PodReady))
	s.after(10 * time.Second).pod(somePod("p", "nvidia-device-plugin-daemonset", "p1", running, corev1.PodScheduled, corev1.PodReady))
	s.after(11 * time.Second).node(someNode("b", 8, 0, corev1.ConditionTrue))
	s.after(12 * time.Second).node(someNode("b", 8, 8, corev1.ConditionTrue))
	s.after(13 * time.Second).pod(workload(corev1.ContainerState{}))
	s.after(14 * time.Second).pod(workload(running))
	s.after(15 * time.Second).pod(workload(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}))
	s.after(16 * time.Second).pod(somePod("v", "nvidia-operator-validator", "v1", running, corev1.PodScheduled, corev1.PodReady))

	line := s.Timeline("n", time.Second)
	for id, want := range map[ID]float64{
		Asked: 0, Registered: 1, Ready: 2, Labelled: 1, DriverScheduled: 3, DriverPulled: 4, DriverStarted: 5, DriverReady: 7, ToolkitReady: 8, PluginReady: 9,
		Capacity: 10, Allocatable: 11, Validated: 15, WorkloadScheduled: 12, WorkloadPulled: -1, WorkloadStarted: 13, FirstResult: 14,
	} {
		require.InDelta(t, want, at(line, id), 1e-9, id)
	}
	require.Equal(t, 1, s.Results())
	require.InDelta(t, 14, line.Total(), 1e-9, "a workload does not wait for the validator")
	sum := 0.0
	for _, r := range line.Steps {
		if of, _ := Find(r.Step); !of.Aside {
			sum += r.Took
		}
	}
	require.InDelta(t, line.Total(), sum, 1e-9, "what the steps took adds up to the whole")
	require.True(t, s.Validates("n"))
	require.Equal(t, []string{"example/nvidia-driver-daemonset"}, s.Images()[Driver])
}

func TestStateBeforeTheSampleIsNoStep(t *testing.T) {
	s := newFixture()
	s.node(someNode("b", 8, 8, corev1.ConditionTrue))
	s.pod(somePod("p", "nvidia-device-plugin-daemonset", "p1", running, corev1.PodScheduled, corev1.PodReady))
	s.Begin()
	s.after(time.Second).node(someNode("b", 8, 8, corev1.ConditionTrue))
	for _, r := range s.Timeline("n", 0).Steps {
		require.Equal(t, r.Step != Asked, r.Before, r.Step)
		require.Zero(t, r.At)
	}
}

func TestLeftoverCapacityIsNotCounted(t *testing.T) {
	s := newFixture()
	s.node(someNode("b", 8, 0, corev1.ConditionTrue)) // for five minutes the kubelet keeps it
	s.Begin()
	s.after(time.Second).node(someNode("b", 8, 0, corev1.ConditionTrue))
	require.InDelta(t, -1, at(s.Timeline("n", 0), Capacity), 0)
	s.after(2 * time.Second).node(someNode("b", 8, 8, corev1.ConditionTrue))
	require.InDelta(t, 2, at(s.Timeline("n", 0), Capacity), 1e-9)
}

func TestLeftoverConditionIsNotValidation(t *testing.T) {
	told := metav1.Now()
	condition := corev1.NodeCondition{Type: readyCondition, Status: corev1.ConditionTrue, Reason: "Ready", LastHeartbeatTime: told, LastTransitionTime: told}
	s := newFixture()
	s.node(someNode("b", 0, 0, corev1.ConditionTrue, condition))
	s.Begin()
	s.after(time.Second).node(someNode("b", 8, 8, corev1.ConditionTrue, condition))
	require.False(t, s.HasReached("n", Validated))
	proving := condition
	proving.Status, proving.Reason, proving.Message = corev1.ConditionUnknown, "Proving", "cuda: vectorAdd runs"
	s.after(2 * time.Second).node(someNode("b", 8, 8, corev1.ConditionTrue, proving))
	condition.LastTransitionTime = metav1.NewTime(told.Add(time.Minute))
	s.after(3 * time.Second).node(someNode("b", 8, 8, corev1.ConditionTrue, condition))
	line := s.Timeline("n", 0)
	require.InDelta(t, 3, at(line, Validated), 1e-9)
	require.Equal(t, []Remark{{2, "GPUReady=Unknown Proving: cuda: vectorAdd runs"}, {3, "GPUReady=True Ready"}}, line.Notes)
}

func TestAfterARebootOnlyNewContainersCount(t *testing.T) {
	s := newFixture()
	s.Reboot = true
	plugin := somePod("p", "nvidia-device-plugin-daemonset", "p1", running, corev1.PodScheduled, corev1.PodReady)
	s.node(someNode("b1", 8, 8, corev1.ConditionTrue))
	s.pod(plugin)
	s.Begin()
	s.after(1 * time.Second).node(someNode("b1", 8, 8, corev1.ConditionTrue))
	require.False(t, s.HasReached("n", Registered))
	s.after(2 * time.Second).node(someNode("b2", 8, 0, corev1.ConditionTrue))
	s.after(3 * time.Second).pod(plugin) // the kubelet has not said anything new of it
	s.after(4 * time.Second).pod(somePod("p", "nvidia-device-plugin-daemonset", "p2", running, corev1.PodScheduled, corev1.PodReady))
	s.after(5 * time.Second).node(someNode("b2", 8, 8, corev1.ConditionTrue))
	line := s.Timeline("n", 0)
	require.InDelta(t, 2, at(line, Ready), 1e-9)
	require.InDelta(t, 4, at(line, PluginReady), 1e-9)
	require.InDelta(t, 5, at(line, Capacity), 1e-9)
}

func TestFailedWorkloadIsReported(t *testing.T) {
	failed := func(change func(*corev1.Pod)) *corev1.Pod {
		p := workload(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}})
		p.Status.Phase = corev1.PodFailed
		change(p)
		return p
	}
	deleted := metav1.Now()
	for want, p := range map[string]*corev1.Pod{
		"the workload ns/w was ended by the cluster (Evicted): The node was low on memory.": failed(func(p *corev1.Pod) {
			p.Status.Reason, p.Status.Message = "Evicted", "The node was low\non memory."
		}),
		"the workload ns/w ended without success (Error); see kubectl logs": failed(func(*corev1.Pod) {}),
		"the workload ns/w was deleted by someone else":                     func() *corev1.Pod { p := workload(running); p.DeletionTimestamp = &deleted; return p }(),
	} {
		s := newFixture()
		s.Begin()
		s.pod(p)
		require.Equal(t, want, s.Failure())
	}
}

func TestWaitReasonOfAPod(t *testing.T) {
	s := newFixture()
	s.Begin()
	p := somePod("d", "nvidia-driver-daemonset", "", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}, corev1.PodScheduled)
	s.pod(p)
	require.Equal(t, "ns/d waits in container main (ImagePullBackOff): not found", s.Waiting("n"))
}

func TestSelectors(t *testing.T) {
	s := DefaultSelectors()
	require.Equal(t, Plugin, s.Of(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"name": "nvidia-device-plugin-ds"}}}))
	require.NoError(t, s.Set("plugin=app in (a, b)"))
	require.Equal(t, Plugin, s.Of(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "b"}}}))
	for _, bad := range []string{"plugin", "network=a=b", "plugin=", "plugin=a in"} {
		require.Error(t, s.Set(bad), bad)
	}
}
