package controller

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// BenchmarkPass measures a pass over nodes of which one has changed, and its report, without
// requests.
func BenchmarkPass(b *testing.B) {
	for _, c := range []struct {
		name    string
		nodes   int
		prepare func(*benchFleet)
	}{
		{"5000 nodes without pods", 5000, func(*benchFleet) {}},
		{"5000 ready nodes", 5000, (*benchFleet).becomeReady},
		{"5000 ready nodes of NVIDIADrivers", 5000, func(f *benchFleet) { f.useDrivers(); f.becomeReady() }},
		{"100 ready nodes", 100, (*benchFleet).becomeReady},
	} {
		b.Run(c.name, func(b *testing.B) {
			before := liveHeap()
			f := newBenchFleet(b, c.nodes)
			c.prepare(f)
			benchmarkPass(b, f)
			b.ReportMetric((liveHeap()-before)/1e6, "MB-kept")
			runtime.KeepAlive(f)
		})
	}
}

func benchmarkPass(b *testing.B, f *benchFleet) {
	b.ReportAllocs()
	began := processorTime(b)
	n := f.nodes["n7"]
	for i := 0; b.Loop(); i++ {
		n.Spec.Unschedulable = i%2 == 0
		f.update(n)
		plan, at := f.plan, f.lastReport.at
		f.now = f.now.Add(time.Minute)
		f.runDue(b.Context())
		f.now = f.now.Add(reportDelay)
		f.runDue(b.Context())
		require.NotSame(b, plan, f.plan)
		require.NotEqual(b, at, f.lastReport.at)
		require.Nil(b, f.model.nodes[n.Name].sent)
	}
	b.StopTimer()
	b.ReportMetric(1e3*(processorTime(b)-began).Seconds()/float64(b.N), "cpu-ms/op")
}

// processorTime returns the processor time that the process has used, garbage collection included.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// liveHeap returns the size of the heap after a garbage collection, in bytes.
func liveHeap() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// benchFleet is a world whose nodes are known to the model only.
type benchFleet struct {
	*world
	nodes   map[string]*corev1.Node
	version int
}

// newBenchFleet returns a fleet in four pools whose nodes have their labels.
func newBenchFleet(b *testing.B, size int) *benchFleet {
	f := &benchFleet{world: newWorld(b), nodes: map[string]*corev1.Node{}}
	f.create(simulated("policy"))
	updatePolicy(f.model, f.policy("policy"))
	for i := range size {
		n := gpuNode(fmt.Sprint("n", i), label.Kernel, fmt.Sprint("5.15.", i%4), label.GPUProduct, "NVIDIA-L4")
		n.Annotations = map[string]string{}
		f.nodes[n.Name] = n
		f.update(n)
	}
	f.settle()
	require.Equal(b, "simulated", f.nodes["n7"].Labels[label.Driver])
	return f
}

// useDrivers leaves the drivers to three NVIDIADrivers.
func (f *benchFleet) useDrivers() {
	p := f.policy("policy")
	yes := true
	p.Spec.Driver.UseNvidiaDriverCRD = &yes
	p.Generation, p.ResourceVersion = 2, "1000000"
	updatePolicy(f.model, p)
	f.model.driversError = nil
	for _, name := range []string{"gold", "silver", "rest"} {
		d := simulatedDriver(name, name)
		if d.Spec.Default = name == "rest"; d.Spec.Default {
			d.Spec.NodeSelector = nil
		}
		f.create(d)
		f.model.nvidiaDrivers[name] = d
	}
	i := 0
	for _, n := range f.nodes {
		n.Labels["tier"] = []string{"gold", "silver", "none"}[i%3]
		i++
		f.update(n)
	}
	f.settle()
}

// update passes a Node's new version to the model.
func (f *benchFleet) update(n *corev1.Node) {
	f.version++
	n.ResourceVersion = strconv.Itoa(f.version)
	updateNode(f.model, n.DeepCopy())
}

// settle runs passes until no Node is patched.
func (f *benchFleet) settle() {
	for patches := 1; patches > 0; {
		patches = 0
		f.now = f.now.Add(time.Minute)
		f.runDue(f.Context())
		for name, on := range f.model.nodes {
			if sent := on.sent; sent != nil {
				patches++
				patched(f.nodes[name], sent)
				f.update(f.nodes[name])
				f.model.completePatch(name, sent, f.nodes[name].ResourceVersion)
				f.writer.set(name, nil)
			}
		}
	}
	f.now = f.now.Add(reportDelay)
	f.runDue(f.Context())
	f.drainInbox()
}

// becomeReady gives each node the pods of four operands, and the validator's proof.
func (f *benchFleet) becomeReady() {
	yes, started := true, metav1.NewTime(f.now)
	for _, n := range f.nodes {
		id, set := n.Labels[label.Driver], label.DriverApp
		if f.model.selection != nil {
			set += "-" + strings.ReplaceAll(id, "_", "-")
		}
		for _, app := range []string{label.DriverApp, "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "nvidia-operator-validator"} {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: app + "-" + n.Name, UID: n.UID, Labels: map[string]string{"app": app, label.DriverDigest: f.rendered.digests[id]},
				OwnerReferences: []metav1.OwnerReference{{Kind: daemonSetKind.Kind, Name: set, Controller: &yes}},
			}}
			p.Spec.NodeName = n.Name
			p.Status.StartTime, p.Status.Conditions = &started, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			updatePod(f.model, p)
		}
		n.Annotations[label.Features] = "gpu.product"
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "GPUReady", Status: corev1.ConditionTrue, Reason: "Ready", LastTransitionTime: started})
		f.update(n)
	}
	f.settle()
	require.Equal(f, len(f.nodes), f.plan.Counts.Done, "%+v", f.plan.Counts)
	require.Equal(f, len(f.nodes), f.policy("policy").Status.Nodes.Ready)
}

// patched changes a Node as the API server does.
func patched(n *corev1.Node, p *upgrade.Patch) {
	for key, value := range p.Labels {
		if delete(n.Labels, key); value != nil {
			n.Labels[key] = *value
		}
	}
	for key, value := range p.Annotations {
		if delete(n.Annotations, key); value != nil {
			n.Annotations[key] = *value
		}
	}
}
