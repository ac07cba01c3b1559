package report_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/explain"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/kube"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
	"github.com/gpuready/gpuready/validator/nodestatus"
	"github.com/gpuready/gpuready/validator/report"
)

func TestMain(m *testing.M) { leak.Main(m) }

const boot = "00000000-0000-4000-8000-000000000000"

var now = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// show compares the text with a golden file.
func show(t *testing.T, name string, r explain.Report) {
	t.Helper()
	asPublished(t, r)
	var wide bytes.Buffer
	require.NoError(t, r.Text(&wide, explain.Style{Width: 100}))
	golden.Require(t, "testdata/explain/"+name+".txt", wide.Bytes())
}

// showAll also compares the text on a narrow terminal, the text in colours, and the JSON.
func showAll(t *testing.T, name string, r explain.Report) {
	t.Helper()
	show(t, name, r)
	var narrow, colored, data bytes.Buffer
	require.NoError(t, r.Text(&narrow, explain.Style{Width: 46}))
	golden.Require(t, "testdata/explain/"+name+"-narrow.txt", narrow.Bytes())
	require.NoError(t, r.Text(&colored, explain.Style{Width: 80, Color: true}))
	golden.Require(t, "testdata/explain/"+name+"-color.txt", colored.Bytes())
	require.NoError(t, r.JSON(&data))
	golden.Require(t, "testdata/explain/"+name+".json", data.Bytes())
}

// site is a node's folders.
type site struct {
	t    *testing.T
	node check.Node
	dir  string
}

func newSite(t *testing.T) *site {
	t.Helper()
	root, err := host.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	s := &site{t: t, node: check.Node{Root: root, BootID: boot, StateDir: "/run/nvidia/gpuready"}}
	s.dir = root.Path(readiness.DefaultDir)
	return s
}

func (s *site) proven(l readiness.Layer, ago time.Duration, summary string) {
	s.t.Helper()
	require.NoError(s.t, readiness.WriteReady(s.dir, l, readiness.Proof{BootID: boot, Time: now.Add(-ago), Summary: summary,
		Driver: &nodestate.DriverInfo{Root: "/", Version: "580.95.05"}}))
}

func (s *site) refused(l readiness.Layer, ago time.Duration, r readiness.NotReady) {
	s.t.Helper()
	r.BootID, r.Time = boot, now.Add(-ago)
	require.NoError(s.t, readiness.WriteNotReady(s.dir, l, r))
}

func (s *site) notRun(l readiness.Layer) {
	s.t.Helper()
	s.refused(l, time.Minute, readiness.NotReady{Reason: check.ReasonNotRun, Message: "not run"})
}

func (s *site) writeState(c nodestate.Component, state nodestate.State) {
	s.t.Helper()
	state.Component, state.BootID = c, boot
	require.NoError(s.t, nodestate.Write(s.node.StatePath(c), state))
}

func (s *site) report() explain.Report {
	r := report.ExplainNode(s.node, s.dir, "n1", now)
	for i := range r.Stages { // Write sets Since to the present time
		if r.Stages[i].Name == explain.Kubelet && !r.Stages[i].Since.IsZero() {
			r.Stages[i].Since = now.Add(-3 * time.Hour)
		}
	}
	return r
}

func plugin(registered bool, devices ...nodestate.Device) nodestate.State {
	return nodestate.State{Phase: nodestate.Ready, DevicePlugin: &nodestate.DevicePluginInfo{
		KubeletSocket: "/var/lib/kubelet/device-plugins/kubelet.sock", Registered: registered,
		Resources: []nodestate.Resource{{Name: "nvidia.com/gpu", Devices: devices}},
	}}
}

const (
	gpu0 = "GPU-00000000-0000-4000-8000-000000000000"
	gpu1 = "GPU-00000000-0000-4000-8000-000000000001"
)

func TestTheRoadOfANodeThatWorks(t *testing.T) {
	s := newSite(t)
	s.proven(readiness.Driver, 50*time.Hour, "2 × NVIDIA H200, driver 580.95.05, CUDA 13.0")
	s.proven(readiness.Toolkit, 50*time.Hour, "2 CDI names of kind k8s.gpuready.io/gpu resolve")
	s.proven(readiness.CUDA, 3*time.Hour, "vectorAdd passed on 2 of 2 GPUs")
	s.proven(readiness.Plugin, 5*time.Minute, "nvidia.com/gpu: 2 allocatable; vectorAdd passed in a pod, 2.1 s from request to result")
	s.writeState(nodestate.DevicePlugin, plugin(true, nodestate.Device{ID: gpu0, GPU: gpu0, Health: nodestate.Healthy},
		nodestate.Device{ID: gpu1, GPU: gpu1, Health: nodestate.Unhealthy, Reason: "XID", Message: "XID 79 (the GPU no longer answers on PCIe)", Since: now.Add(-time.Hour)}))
	r := s.report()
	require.Equal(t, "ok: pods can use the GPUs of this node; see what is marked !", r.Result)
	showAll(t, "works", r)
}

func TestTheRoadEndsWhereALayerIsRefused(t *testing.T) {
	s := newSite(t)
	s.proven(readiness.Driver, time.Hour, "2 × NVIDIA H200, driver 580.95.05, CUDA 13.0")
	s.proven(readiness.Toolkit, time.Hour, "2 CDI names of kind k8s.gpuready.io/gpu resolve")
	s.refused(readiness.CUDA, 3*time.Minute, readiness.NotReady{Reason: "CUDASampleFailed",
		Message: "GPU 1 (" + gpu1 + ", 0000:11:00.0): vectoradd: element 7 of 50000 is 3.5, not 3.25", Action: "drain the node and run gpu-validator preflight; a GPU that computes wrongly has to be replaced"})
	s.notRun(readiness.Plugin)
	s.writeState(nodestate.Toolkit, nodestate.State{Phase: nodestate.Degraded, Reason: "SpecsIncomplete", Message: "one spec could not be written"})
	showAll(t, "refused", s.report())
	picture, err := os.ReadFile("testdata/explain/refused.txt")
	require.NoError(t, err)
	const begin, end = "<!-- Explanation: made by go test ./validator/report -run TestTheRoadEnds -update -->\n",
		"<!-- end of Explanation -->\n"
	golden.RequireSection(t, "../../docs/validator.md", begin, end, "\n    $ gpu-validator explain\n"+indented(string(picture))+"\n")
}

// indented returns text indented as in the documentation.
func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight("    "+line, " \n") + "\n")
	}
	return b.String()
}

func TestTheRoadNamesTheCauseOfTheWait(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*site)
		want    string
	}{
		"nothing was reported": {func(*site) {}, "waiting at driver: the validator has not reported on it yet"},
		"of an earlier boot": {func(s *site) {
			require.NoError(t, readiness.WriteReady(s.dir, readiness.Driver, readiness.Proof{BootID: "another", Time: now}))
		}, "waiting at driver: what is known is from an earlier boot"},
		"no GPU": {func(s *site) {
			for _, l := range readiness.Layers() {
				s.refused(l, time.Minute, readiness.NotReady{Reason: check.ReasonNoGPU, Message: "the PCI bus has no NVIDIA GPU"})
			}
		}, "no GPU: the PCI bus has no NVIDIA GPU"},
		"a pod runs": {func(s *site) {
			for _, l := range readiness.Layers()[:3] {
				s.proven(l, time.Hour, "works")
			}
			s.writeState(nodestate.DevicePlugin, plugin(true, nodestate.Device{ID: gpu0, GPU: gpu0, Health: nodestate.Healthy}))
			s.refused(readiness.Plugin, time.Second, readiness.NotReady{Reason: "WorkloadRunning", Message: "a pod that requests nvidia.com/gpu has not finished yet", Action: "wait"})
		}, "waiting at pod: a pod that requests nvidia.com/gpu has not finished yet"},
		"the pod failed": {func(s *site) {
			for _, l := range readiness.Layers()[:3] {
				s.proven(l, time.Hour, "works")
			}
			s.writeState(nodestate.DevicePlugin, plugin(true, nodestate.Device{ID: gpu0, GPU: gpu0, Health: nodestate.Healthy}))
			s.refused(readiness.Plugin, time.Second, readiness.NotReady{Reason: "WorkloadNotStarted", Message: "ErrImagePull", Action: "see the image"})
		}, "broken at pod: WorkloadNotStarted"},
		"an optional layer is broken": {func(s *site) {
			for _, l := range readiness.Layers() {
				s.proven(l, time.Hour, "works")
			}
			s.writeState(nodestate.DevicePlugin, plugin(true, nodestate.Device{ID: gpu0, GPU: gpu0, Health: nodestate.Healthy}))
			s.proven(readiness.GDRCopy, time.Hour, "works")
			s.refused(readiness.GDS, time.Minute, readiness.NotReady{Reason: "GDSNotLoaded", Message: "no nvidia_fs", Action: "load it"})
		}, "broken at gds, an optional layer: GDSNotLoaded"},
		"a proof that is none": {func(s *site) {
			require.NoError(t, os.MkdirAll(s.dir, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(s.dir, "driver-ready"), []byte("LAYER=$(id)\n"), 0o644))
		}, "broken at driver: ProofInvalid"},
		"the driver is being built": {func(s *site) {
			s.writeState(nodestate.Driver, nodestate.State{Phase: nodestate.Waiting, Reason: "DriverStarting", Message: "compiling the modules"})
		}, "waiting at driver: no driver is loaded: compiling the modules"},
		"the driver cannot be built": {func(s *site) {
			s.refused(readiness.Driver, time.Minute, readiness.NotReady{Reason: "KernelModuleNotLoaded", Message: "no module nvidia", Action: "load it"})
			s.writeState(nodestate.Driver, nodestate.State{Phase: nodestate.Failed, Reason: "BuildFailed", Message: "nv-mmap.c:42: error: implicit declaration of follow_pfn; use driver 580.65.06 or later"})
		}, "broken at driver: BuildFailed"},
		"the driver fails before the validator runs": {func(s *site) {
			s.writeState(nodestate.Driver, nodestate.State{Phase: nodestate.Failed, Reason: "SignatureRejected", Message: "nvidia.ko is not signed; enrol the certificate"})
		}, "broken at driver: SignatureRejected"},
		"the driver does not work": {func(s *site) {
			s.refused(readiness.Driver, time.Minute, readiness.NotReady{Reason: "NoUsableGPU", Message: "the driver works and finds no GPU", Action: "look at dmesg"})
			s.writeState(nodestate.Driver, nodestate.State{Phase: nodestate.Failed, Reason: "DeviceInitFailed", Message: "RmInitAdapter failed"})
		}, "broken at driver: NoUsableGPU"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c.prepare(s)
			r := s.report()
			require.Equal(t, c.want, r.Result)
			if r.Stages[0].Reason != "ProofInvalid" { // its message names a path that differs each time
				show(t, strings.ReplaceAll(name, " ", "-"), r)
			}
		})
	}
}

func TestNoLineIsWiderThanTheTerminal(t *testing.T) {
	s := newSite(t)
	s.refused(readiness.Driver, time.Hour, readiness.NotReady{Reason: "DriverVersionMismatch", Message: strings.Repeat("a word and another ", 30), Action: strings.Repeat("do this ", 40)})
	for width := 24; width < 130; width++ {
		var b bytes.Buffer
		require.NoError(t, s.report().Text(&b, explain.Style{Width: width}))
		for line := range strings.Lines(b.String()) {
			text := strings.TrimSuffix(line, "\n")
			if strings.Contains(text, " ") && !strings.Contains(text, "DriverVersionMismatch") {
				require.LessOrEqual(t, utf8.RuneCountInString(text), max(width, 28), text)
			}
		}
	}
}

// cluster returns an API server with one Node as written by the validator's daemon.
func cluster(t *testing.T, change func(*corev1.Node)) (*kubetest.Server, *kube.Client) {
	t.Helper()
	server := kubetest.Start("n1")
	t.Cleanup(server.Stop)
	client, err := kube.New(server.Config())
	require.NoError(t, err)
	t.Cleanup(client.Close)
	quantity := func(n string) corev1.ResourceList {
		return corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)}
	}
	server.Node("n1", func(n *corev1.Node) {
		n.Labels = map[string]string{"nvidia.com/gpu.count": "2", "nvidia.com/gpu.product": "NVIDIA-H200"}
		n.Status.Capacity, n.Status.Allocatable = quantity("2"), quantity("1")
		n.Status.Conditions = append(n.Status.Conditions,
			newCondition(nodestatus.ConditionType, "True", "Ready", "2 of 2 GPUs ready, driver 580.95.05"),
			newCondition(nodestatus.HealthType, "True", "Healthy", "nothing is wrong with 2 GPUs"))
		change(n)
	})
	for _, app := range []string{"nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "nvidia-operator-validator"} {
		server.AddPod(agent(app))
	}
	for key := range server.Pods() {
		server.Update(server.Pods()[key], func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	}
	return server, client
}

func newCondition(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
	return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(now.Add(-10 * time.Minute)), LastHeartbeatTime: metav1.NewTime(now.Add(-time.Minute))}
}

func agent(app string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpuready", Name: app + "-x", Labels: map[string]string{"app": app, "app.kubernetes.io/part-of": "gpuready"}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
	}
}

func set(n *corev1.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	n.Status.Conditions[i] = newCondition(kind, status, reason, message)
}

func TestTheRoadFromTheCluster(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		after  func(*kubetest.Server)
		want   string
	}{
		"all is well": {want: "ok: pods can use the GPUs of this node"},
		"one GPU is broken": {change: func(n *corev1.Node) {
			set(n, nodestatus.ConditionType, "True", "Degraded", "1 of 2 GPUs ready, driver 580.95.05; GPU 1 ("+gpu1+", 0000:11:00.0): XID 79")
			set(n, nodestatus.HealthType, "False", "XID", "GPU 1 ("+gpu1+", 0000:11:00.0): XID 79")
		}, after: func(s *kubetest.Server) { addEvents(t, s) }, want: "ok: pods can use the GPUs of this node; see what is marked !"},
		"the toolkit is silent": {change: func(n *corev1.Node) {
			set(n, nodestatus.ConditionType, "False", "ToolkitSilent", "toolkit: the toolkit has reported nothing since the node booted; next: start gpu-toolkit on this node")
			n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu-not-ready", Effect: "NoSchedule"}}
			n.Spec.Unschedulable = true
		}, after: func(s *kubetest.Server) {
			s.Remove("gpuready/nvidia-device-plugin-daemonset-x")
			s.Update("gpuready/nvidia-container-toolkit-daemonset-x", func(p *corev1.Pod) {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "toolkit",
					State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}},
					LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "no containerd socket"}}}}
			})
		}, want: "broken at toolkit: ToolkitSilent"},
		"the pod cannot start": {change: func(n *corev1.Node) {
			set(n, nodestatus.ConditionType, "False", "WorkloadNotStarted", "plugin: validator: ErrImagePull; see that the image can be pulled")
		}, want: "broken at pod: WorkloadNotStarted"},
		"a proof is pending": {change: func(n *corev1.Node) {
			set(n, nodestatus.ConditionType, "Unknown", "Proving", "plugin: a pod that requests nvidia.com/gpu has not finished yet")
		}, want: "waiting at pod: a pod that requests nvidia.com/gpu has not finished yet"},
		"an optional layer is broken": {change: func(n *corev1.Node) {
			set(n, nodestatus.ConditionType, "False", "GDSNotLoaded", "gds: no nvidia_fs; load it")
		}, want: "broken at gds, an optional layer: GDSNotLoaded"},
		"no GPU in it": {change: func(n *corev1.Node) {
			set(n, nodestatus.ConditionType, "False", "NoGPU", "the PCI bus has no NVIDIA GPU")
		}, want: "no GPU: the PCI bus has no NVIDIA GPU"},
		"there is no condition": {change: func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[:1] },
			after: func(s *kubetest.Server) { s.Remove("gpuready/nvidia-operator-validator-x") },
			want:  "waiting at driver: the validator has not reported on it yet"},
		"the node is away": {change: func(n *corev1.Node) {
			n.Status.Conditions[0].Status, n.Status.Conditions[0].Message = corev1.ConditionUnknown, "Kubelet stopped posting node status."
			n.Status.Conditions[1].LastHeartbeatTime = metav1.NewTime(now.Add(-time.Hour))
		}, want: "broken at kubelet: NodeNotReady"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change == nil {
				c.change = func(*corev1.Node) {}
			}
			server, client := cluster(t, c.change)
			if c.after != nil {
				c.after(server)
			}
			r, err := report.ExplainCluster(t.Context(), client, "n1", now)
			require.NoError(t, err)
			require.Equal(t, c.want, r.Result)
			show(t, "cluster-"+strings.ReplaceAll(name, " ", "-"), r)
		})
	}
}

// addEvents creates an Event of ours, and one of another component.
func addEvents(t *testing.T, s *kubetest.Server) {
	t.Helper()
	client, err := kube.New(s.Config())
	require.NoError(t, err)
	defer client.Close()
	for _, from := range []string{nodestatus.Component, "kubelet"} {
		require.NoError(t, client.CreateEvent(t.Context(), &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: kube.EventNamespace, Name: "n1." + from}, Type: "Warning", Reason: "XID", Count: 2,
			InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "n1"}, Source: corev1.EventSource{Component: from},
			Message: "GPU 1 (" + gpu1 + ", 0000:11:00.0): XID 79", LastTimestamp: metav1.NewTime(now.Add(-4 * time.Minute)),
		}))
	}
}

func TestForbiddenListsAreLeftOut(t *testing.T) {
	server, client := cluster(t, func(*corev1.Node) {})
	server.Fail(func(r *http.Request) *kubetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/pods") || strings.HasSuffix(r.URL.Path, "/events") {
			return &kubetest.Fault{Status: http.StatusForbidden, Message: "pods is forbidden"}
		}
		return nil
	})
	r, err := report.ExplainCluster(t.Context(), client, "n1", now)
	require.NoError(t, err)
	require.Equal(t, "ok: pods can use the GPUs of this node", r.Result)
	require.Len(t, r.Notes, 2)
	require.Contains(t, r.Notes[0], "the agents' pods cannot be listed: pods is forbidden")

	_, err = report.ExplainCluster(t.Context(), client, "n2", now)
	require.ErrorContains(t, err, "read Node n2")
	require.ErrorContains(t, err, "see kubectl get nodes")
}

func TestAHangingAPIServerTimesOut(t *testing.T) {
	server, client := cluster(t, func(*corev1.Node) {})
	server.Fail(func(*http.Request) *kubetest.Fault { return &kubetest.Fault{Hang: true} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := report.ExplainCluster(ctx, client, "n1", now)
		ended <- err
	}()
	require.NoError(t, server.Wait(t.Context(), func() bool { return len(server.Requests()) > 0 }))
	cancel()
	require.Error(t, <-ended)
}
