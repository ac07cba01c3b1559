// Package e2e tests gpuready on a real cluster: what a user does, with the manifests that a
// user gets, and the outcome. `make e2e` runs the scenarios.
//
// world.go caches the cluster's state as seen through its API, and kubectl.go changes it.
// The scenarios are in the tests, one file for each subject.
package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// GPU is the resource name of GPUs.
const GPU corev1.ResourceName = "nvidia.com/gpu"

// patience limits how long a scenario waits for anything. The expected times are seconds; the
// timeline prints them, and nothing here asserts them.
const patience = 3 * time.Minute

// ClusterState is a cache of the API server's state, kept up to date by watches.
type ClusterState struct {
	Client  kubernetes.Interface
	Config  *rest.Config
	factory informers.SharedInformerFactory
	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	changes []Change
}

// Change is a change that the API server reported; a timeline consists of them.
type Change struct {
	At   time.Time
	Node *corev1.Node
	Pod  *corev1.Pod
}

// Watch watches nodes, pods and events until ctx ends.
func Watch(ctx context.Context, kubeconfig string) (*ClusterState, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	w := &ClusterState{Client: client, Config: config, factory: informers.NewSharedInformerFactory(client, 0), changed: make(chan struct{})}
	for _, informer := range []cache.SharedIndexInformer{
		w.factory.Core().V1().Nodes().Informer(), w.factory.Core().V1().Pods().Informer(), w.factory.Core().V1().Events().Informer(),
		w.factory.Apps().V1().DaemonSets().Informer(), w.factory.Batch().V1().Jobs().Informer(),
	} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: w.record, DeleteFunc: w.record, UpdateFunc: func(_, now any) { w.record(now) },
		}); err != nil {
			return nil, err
		}
	}
	w.factory.Start(ctx.Done())
	for what, ok := range w.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return nil, fmt.Errorf("watch %v: %w", what, context.Cause(ctx))
		}
	}
	return w, nil
}

func (w *ClusterState) record(object any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := Change{At: time.Now()}
	switch o := object.(type) {
	case *corev1.Node:
		c.Node = o
	case *corev1.Pod:
		c.Pod = o
	}
	if c.Node != nil || c.Pod != nil {
		w.changes = append(w.changes, c)
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// Since returns the changes of nodes and pods after a time.
func (w *ClusterState) Since(start time.Time) []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, _ := slices.BinarySearchFunc(w.changes, start, func(c Change, t time.Time) int { return c.At.Compare(t) })
	return slices.Clone(w.changes[i:])
}

// Until waits until cond returns no error; it is called again after each change. On a timeout
// the failure shows its last error and the state of the pods.
func (w *ClusterState) Until(t *testing.T, what string, cond func() error) {
	t.Helper()
	w.UntilWithin(t, patience, what, cond)
}

// UntilWithin is like Until, with another limit.
func (w *ClusterState) UntilWithin(t *testing.T, within time.Duration, what string, cond func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := w.until(ctx, cond); err != nil {
		t.Fatalf("waited %v until %s:\n%v\n%s", within, what, err, w.Describe())
	}
}

func (w *ClusterState) until(ctx context.Context, cond func() error) error {
	for {
		w.mu.Lock()
		changed := w.changed
		w.mu.Unlock()
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

// Nodes returns all nodes, by name.
func (w *ClusterState) Nodes() []*corev1.Node {
	nodes, _ := w.factory.Core().V1().Nodes().Lister().List(labels.Everything())
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// Node returns a node, or an empty one if it does not exist.
func (w *ClusterState) Node(name string) *corev1.Node {
	node, err := w.factory.Core().V1().Nodes().Lister().Get(name)
	if err != nil {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	return node
}

// Pods returns the pods of a namespace that have a label, "key=value"; "": all.
func (w *ClusterState) Pods(namespace, label string) []*corev1.Pod {
	selector, err := labels.Parse(label)
	if err != nil {
		panic(err) // a mistake in the scenario
	}
	pods, _ := w.factory.Core().V1().Pods().Lister().Pods(namespace).List(selector)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Spec.NodeName+a.Name, b.Spec.NodeName+b.Name) })
	return pods
}

// Pod returns a pod, or nil if it does not exist.
func (w *ClusterState) Pod(namespace, name string) *corev1.Pod {
	pod, err := w.factory.Core().V1().Pods().Lister().Pods(namespace).Get(name)
	if err != nil {
		return nil
	}
	return pod
}

// Events returns the events about an object, by its name.
func (w *ClusterState) Events(kind, name string) []*corev1.Event {
	all, _ := w.factory.Core().V1().Events().Lister().List(labels.Everything())
	return slices.DeleteFunc(all, func(e *corev1.Event) bool { return e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name })
}

// Allocatable returns the number of GPUs that a node offers.
func (w *ClusterState) Allocatable(node string) int64 {
	q := w.Node(node).Status.Allocatable[GPU]
	return q.Value()
}

// WaitAllocatable waits until a node's allocatable GPUs reach that number. Only reports that its kubelet
// sends from now on count.
func (w *ClusterState) WaitAllocatable(t *testing.T, gpus int64, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		w.WaitAllResources(t, node, map[corev1.ResourceName]int64{GPU: gpus})
	}
}

// WaitAllResources is like WaitAllocatable, for several resources of one node.
func (w *ClusterState) WaitAllResources(t *testing.T, node string, want map[corev1.ResourceName]int64) {
	t.Helper()
	asked := time.Now()
	w.Until(t, fmt.Sprintf("node %s has allocatable %v", node, want), func() error {
		if c := w.Condition(node, corev1.NodeReady); c == nil || !c.LastHeartbeatTime.After(asked) {
			return fmt.Errorf("its kubelet has not reported since %v: %+v", asked, c)
		}
		allocatable := w.Node(node).Status.Allocatable
		for name, n := range want {
			if have := allocatable[name]; have.Value() != n {
				return fmt.Errorf("it has %d of %s", have.Value(), name)
			}
		}
		return nil
	})
}

// Condition returns a node's condition, or nil if it has none of that type.
func (w *ClusterState) Condition(node string, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for _, c := range w.Node(node).Status.Conditions {
		if c.Type == kind {
			return &c
		}
	}
	return nil
}

// WaitDaemonSets waits until every pod of a DaemonSet is current and ready, and no older one is left. It
// reads the pods themselves, because the DaemonSet's status lags behind a deletion.
func (w *ClusterState) WaitDaemonSets(t *testing.T, namespace string, daemonsets ...string) {
	t.Helper()
	for _, name := range daemonsets {
		w.Until(t, "DaemonSet "+name+" is ready", func() error {
			ds, err := w.factory.Apps().V1().DaemonSets().Lister().DaemonSets(namespace).Get(name)
			if err != nil {
				return err
			}
			s := ds.Status
			if s.ObservedGeneration != ds.Generation || s.DesiredNumberScheduled == 0 || s.NumberReady != s.DesiredNumberScheduled || s.UpdatedNumberScheduled != s.DesiredNumberScheduled {
				return fmt.Errorf("%d of %d ready, %d up to date", s.NumberReady, s.DesiredNumberScheduled, s.UpdatedNumberScheduled)
			}
			pods := w.Pods(namespace, "app="+name)
			for _, p := range pods {
				if p.DeletionTimestamp != nil || !metav1.IsControlledBy(p, ds) || !ready(p) {
					return fmt.Errorf("pod %s is of before, or not ready", p.Name)
				}
			}
			if len(pods) != int(s.DesiredNumberScheduled) {
				return fmt.Errorf("%d of %d pods are there", len(pods), s.DesiredNumberScheduled)
			}
			return nil
		})
	}
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// WaitEnded waits until a pod has ended, and returns it.
func (w *ClusterState) WaitEnded(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	w.Until(t, "pod "+name+" has ended", func() error {
		if pod = w.Pod(namespace, name); pod == nil {
			return fmt.Errorf("there is no such pod")
		}
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	return pod
}

// Describe returns the state of all nodes and pods for a failure message, one line each.
func (w *ClusterState) Describe() string {
	var b strings.Builder
	for _, n := range w.Nodes() {
		fmt.Fprintf(&b, "node %s: capacity %v, allocatable %v", n.Name, n.Status.Capacity[GPU], n.Status.Allocatable[GPU])
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady || c.Type == "GPUReady" {
				fmt.Fprintf(&b, "; %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
			}
		}
		fmt.Fprintln(&b)
	}
	for _, p := range w.Pods("", "") {
		fmt.Fprintf(&b, "pod %s/%s on %q: %s %s %s\n", p.Namespace, p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason, p.Status.Message)
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			fmt.Fprintf(&b, "    %s: ready %v, restarts %d", c.Name, c.Ready, c.RestartCount)
			if s := c.State.Waiting; s != nil {
				fmt.Fprintf(&b, "; waiting %s: %s", s.Reason, s.Message)
			}
			if s := c.State.Terminated; s != nil {
				fmt.Fprintf(&b, "; ended %d %s: %s", s.ExitCode, s.Reason, s.Message)
			}
			if s := c.LastTerminationState.Terminated; s != nil {
				fmt.Fprintf(&b, "; before: %d %s: %s", s.ExitCode, s.Reason, s.Message)
			}
			fmt.Fprintln(&b)
		}
	}
	return b.String()
}
