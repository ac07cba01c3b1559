package progress

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	driverApp    = label.DriverApp
	toolkitApp   = "nvidia-container-toolkit-daemonset"
	pluginApp    = "nvidia-device-plugin-daemonset"
	validatorApp = "nvidia-operator-validator"
)

// pod returns an operand's ready pod on n1, modified by change.
func pod(app string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpus", Name: app + "-x", UID: "u", Labels: map[string]string{"app": app}, CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-30 * time.Second))},
		}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func unready(statuses ...corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions[0].Status = corev1.ConditionFalse
		p.Status.ContainerStatuses = statuses
	}
}

func waits(reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: "main", Image: "r/i:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func ended(code int32, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, Reason: "Error"}}
}

func crashes(s corev1.ContainerStatus, code int32, message string) corev1.ContainerStatus {
	s.LastTerminationState, s.RestartCount = ended(code, message), 4
	return s
}

func unscheduled(p *corev1.Pod) {
	p.Spec.NodeName = ""
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}}},
	}}}}
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/2 nodes are available: 1 Insufficient cpu"}}}
}

func TestReasonWhyAPodIsNotReady(t *testing.T) {
	running := corev1.ContainerStatus{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	for name, c := range map[string]struct {
		change  func(*corev1.Pod)
		reason  string
		stuck   bool
		message string
	}{
		"image, backing off": {unready(waits("ImagePullBackOff", `Back-off pulling image "r/i:1": ErrImagePull: r/i:1: not found`)), ReasonImagePull, true, "container main: image r/i:1: r/i:1: not found"},
		"image, just tried":  {unready(waits("ErrImagePull", "r/i:1: not found")), ReasonImagePull, true, "container main: image r/i:1: r/i:1: not found"},
		"crashing":           {unready(crashes(waits("CrashLoopBackOff", "back-off 5m0s restarting"), 2, "no such flag")), ReasonCrashLoop, true, "container main ended with 2: no such flag"},
		"crashed":            {unready(corev1.ContainerStatus{Name: "main", State: ended(2, "no such flag")}), ReasonCrashLoop, true, "container main ended with 2: no such flag"},
		"between crashes":    {unready(crashes(running, 2, "no such flag")), ReasonCrashLoop, true, "container main ended with 2: no such flag"},
		"no configuration":   {unready(waits("CreateContainerConfigError", `configmap "x" not found`)), ReasonCannotStart, true, `container main: CreateContainerConfigError: configmap "x" not found`},
		"no such runtime":    {unready(waits("RunContainerError", "x\ny")), ReasonCannotStart, true, "container main: RunContainerError: x y"},
		"creating":           {unready(waits("ContainerCreating", "")), ReasonStarting, false, "the pod's containers are being started"},
		"not ready":          {unready(running), ReasonNotReady, false, "container main runs and is not ready yet"},
		"unschedulable":      {unscheduled, ReasonUnschedulable, true, "0/2 nodes are available: 1 Insufficient cpu"},
		"init": {func(p *corev1.Pod) {
			unready(waits("PodInitializing", ""))(p)
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "first", State: ended(0, "")}, {Name: "second", State: running.State}}
		}, ReasonInit, false, "init container second has not ended yet"},
		"init crashes": {func(p *corev1.Pod) {
			unready(waits("PodInitializing", ""))(p)
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{crashes(waits("CrashLoopBackOff", ""), 1, "boom")}
		}, ReasonCrashLoop, true, "container main ended with 1: boom"},
		"not admitted": {func(p *corev1.Pod) {
			unready()(p)
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "UnexpectedAdmissionError", "no space"
		}, ReasonNotAdmitted, true, "UnexpectedAdmissionError: no space"},
		"going": {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }, ReasonTerminating, false, "the pod is being deleted"},
		"host driver": {func(p *corev1.Pod) {
			unready(waits("PodInitializing", ""))(p)
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "host-driver", State: waits("CrashLoopBackOff", "").State, LastTerminationState: ended(3, "looking\nHostDriver: 580.95.05 is loaded\n")}}
		}, ReasonHostDriver, false, "580.95.05 is loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(driverApp, c.change)
			whole := ObservePod(p)
			require.Equal(t, "n1", whole.Node)
			require.Equal(t, Driver, whole.State)
			require.False(t, whole.Ready)
			require.Equal(t, Problem{c.stuck, c.reason, c.message, whole.Problem.Since}, whole.Problem)
			require.False(t, whole.Problem.Since.IsZero())
			require.Equal(t, c.reason == ReasonHostDriver, whole.HostDriver != "")
			Strip(p)
			require.Equal(t, whole, ObservePod(p), "a stripped pod says the same")
		})
	}
	require.Zero(t, ObservePod(pod(driverApp)).Problem)
	grace := int64(15)
	leaving := ObservePod(pod(driverApp, func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(15 * time.Second)}, &grace
	}))
	require.Equal(t, now, leaving.Problem.Since, "it is being deleted since the request, not from the end of its grace period")
	long := ObservePod(pod(driverApp, unready(waits("RunContainerError", strings.Repeat("x", 9999)))))
	require.LessOrEqual(t, len(long.Problem.Message), 512)
}

// node returns a GPU node that is ready, modified by change.
func node(change ...func(*fleet.Node)) *fleet.Node {
	n := &fleet.Node{Name: "n1", UID: "1", GPU: true, Ready: true, Heartbeat: now, Created: now.Add(-time.Hour), Labels: map[string]string{label.GPUProduct: "GPU"}}
	validated(corev1.ConditionTrue, "Ready", "8 of 8 GPUs ready")(n)
	for _, c := range change {
		c(n)
	}
	return n
}

func validated(status corev1.ConditionStatus, reason, message string) func(*fleet.Node) {
	return func(n *fleet.Node) {
		n.GPUReady = fleet.Condition{Status: status, Reason: reason, Message: message, Since: now.Add(-2 * time.Hour), Renewed: now.Add(-4 * time.Minute)}
	}
}

func labelled(key, value string) func(*fleet.Node) {
	return func(n *fleet.Node) { n.Labels[key] = value }
}

func without(key string) func(*fleet.Node) { return func(n *fleet.Node) { delete(n.Labels, key) } }

func unvalidated(n *fleet.Node) { n.GPUReady = fleet.Condition{} }

func TestProgressOfANode(t *testing.T) {
	all := []*corev1.Pod{pod(driverApp), pod(toolkitApp), pod(pluginApp), pod(validatorApp)}
	broken := unready(waits("ImagePullBackOff", "gone"))
	starting := unready(waits("ContainerCreating", ""))
	for name, c := range map[string]struct {
		node   *fleet.Node
		pods   []*corev1.Pod
		steps  int // of the road
		state  State
		status Status
		reason string
	}{
		"all is proven":                        {node(), all, 8, "", Ready, "Ready"},
		"proven, and a pod is replaced":        {node(), []*corev1.Pod{pod(driverApp, starting)}, 8, "", Ready, "Ready"},
		"no labels of the GPUs yet":            {node(without(label.GPUProduct)), all, 7, FeatureLabels, Waiting, ReasonNoLabels},
		"just labelled":                        {node(unvalidated), nil, 1, Driver, Waiting, ReasonNoPod},
		"driver starts":                        {node(unvalidated), []*corev1.Pod{pod(driverApp, starting), pod(validatorApp)}, 1, Driver, Waiting, ReasonStarting},
		"driver has no image":                  {node(validated("False", "KernelModuleNotLoaded", "driver: none; load it")), []*corev1.Pod{pod(driverApp, broken), pod(validatorApp)}, 1, Driver, Failed, ReasonImagePull},
		"driver on the host":                   {node(unvalidated, labelled(label.Deploy+"driver", label.PreInstalled)), []*corev1.Pod{pod(validatorApp, starting)}, 2, DriverValidation, Waiting, ReasonStarting},
		"driver is not proven":                 {node(validated("False", "KernelModuleNotLoaded", "driver: none; load it")), all, 2, DriverValidation, Failed, "KernelModuleNotLoaded"},
		"driver is being proven":               {node(validated("Unknown", "Proving", "driver: is being looked at")), all, 2, DriverValidation, Waiting, "Proving"},
		"toolkit has no pod":                   {node(validated("False", "NoInjection", "toolkit: none; wait")), []*corev1.Pod{pod(driverApp)}, 3, Toolkit, Waiting, ReasonNoPod},
		"toolkit fails":                        {node(validated("False", "NoInjection", "toolkit: none; wait")), all, 4, ToolkitValidation, Failed, "NoInjection"},
		"cuda fails":                           {node(validated("False", "WrongResult", "cuda: 2+2=5; replace it")), all, 6, PluginValidation, Failed, "WrongResult"},
		"plugin starts":                        {node(validated("False", "PluginMissing", "plugin: none; wait")), []*corev1.Pod{pod(pluginApp, starting)}, 5, DevicePlugin, Waiting, ReasonStarting},
		"a layer beside the road fails":        {node(validated("False", "PeermemMissing", "peermem: none; load it")), all, 6, PluginValidation, Failed, "PeermemMissing"},
		"nothing is known in this boot":        {node(validated("Unknown", "Proving", "nothing has been proven yet since the node was started")), all, 2, DriverValidation, Waiting, "Proving"},
		"NFD sees a GPU, the validator none":   {node(validated("False", "NoGPU", "the PCI bus has none")), all, 2, DriverValidation, Failed, "NoGPU"},
		"a platform that is not served":        {node(validated("False", "PlatformNotServed", "driver: gpuready does not serve it; next: x")), all[1:], 0, DriverValidation, Failed, "PlatformNotServed"},
		"validator cannot start":               {node(unvalidated), []*corev1.Pod{pod(driverApp), pod(validatorApp, broken)}, 2, DriverValidation, Failed, ReasonImagePull},
		"validator says nothing":               {node(unvalidated), all, 2, DriverValidation, Unknown, ReasonNotValidated},
		"validator is kept away":               {node(unvalidated, labelled(label.Deploy+"operator-validator", "false")), all[:3], 2, DriverValidation, Unknown, ReasonNotValidated},
		"validator has been silent for long":   {node(func(n *fleet.Node) { n.GPUReady.Renewed = n.Heartbeat.Add(-fleet.StaleAfter) }), all, 2, DriverValidation, Unknown, ReasonStale},
		"validator has ended":                  {node(func(n *fleet.Node) { n.GPUReady.Status, n.GPUReady.Reason = "Unknown", "ValidatorStopped" }), []*corev1.Pod{pod(driverApp)}, 2, DriverValidation, Waiting, ReasonNoPod},
		"validator runs again":                 {node(func(n *fleet.Node) { n.GPUReady.Status, n.GPUReady.Reason = "Unknown", "ValidatorStopped" }), all, 2, DriverValidation, Waiting, "ValidatorStopped"},
		"validator's pod died, its word stays": {node(func(n *fleet.Node) { n.GPUReady.Renewed = n.Heartbeat.Add(-fleet.StaleAfter) }), []*corev1.Pod{pod(driverApp), pod(validatorApp, unready(crashes(waits("CrashLoopBackOff", ""), 1, "x")))}, 2, DriverValidation, Failed, ReasonCrashLoop},
		"kubelet is not heard of":              {node(func(n *fleet.Node) { n.Ready = false }), all, 0, Prerequisites, Unknown, ReasonNodeNotReady},
		"kept away":                            {node(labelled(label.Operands, "false")), nil, 0, "", Excluded, ReasonExcluded},
		"a person keeps the driver away":       {node(unvalidated, labelled(label.Deploy+"driver", "false")), nil, 2, DriverValidation, Waiting, ReasonNoPod},
		"an old driver pod goes, the new one has no image": {node(validated("False", "X", "driver: x; y")), []*corev1.Pod{
			pod(driverApp, func(p *corev1.Pod) { p.Name, p.DeletionTimestamp = "old", &metav1.Time{Time: now} }), pod(driverApp, broken),
		}, 1, Driver, Failed, ReasonImagePull},
	} {
		t.Run(name, func(t *testing.T) {
			var pods []*Pod
			for _, p := range c.pods {
				pods = append(pods, ObservePod(p))
			}
			p := Of(c.node, pods, Wanted{States: Sequence()})
			require.Equal(t, []any{c.state, c.status, c.reason}, []any{p.State, p.Status, p.Reason}, p.Message)
			require.Equal(t, append([]State{}, Sequence()[:c.steps]...), append([]State{}, p.Steps...))
			require.NotEmpty(t, p.Message)
		})
	}
}

func TestAReasonIsCleanedAndALongMessageKeepsTheNextAction(t *testing.T) {
	pods := []*Pod{ObservePod(pod(driverApp)), ObservePod(pod(toolkitApp)), ObservePod(pod(pluginApp)), ObservePod(pod(validatorApp))}
	p := Of(node(validated("False", "X\x1b[2J", "cuda: "+strings.Repeat("x", 900)+"; next: replace it")), pods, Wanted{States: Sequence()})
	require.Equal(t, "X [2J", p.Reason)
	require.LessOrEqual(t, len(p.Message), maxText)
	require.Contains(t, p.Message, "; next: replace it")
	require.Equal(t, "X [2J", Of(node(validated("True", "X\x1b[2J", "all")), pods, Wanted{States: Sequence()}).Reason)
}

func TestDriverContainersReasonIsReported(t *testing.T) {
	const log = "time=… level=INFO msg=compiling\ngpu-driver: BuildFailed: nv-mmap.c:42: error: implicit declaration of follow_pfn; use driver 580.65.06 or later\n"
	said := node(validated("False", "InUse", "driver: no driver is loaded: python (12) of pod a/b holds nvidia_uvm; end it"))
	waits := unready(corev1.ContainerStatus{Name: "nvidia-driver-ctr", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	ended := unready(corev1.ContainerStatus{Name: "nvidia-driver-ctr", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", Message: log}}})
	for name, c := range map[string]struct {
		node    *fleet.Node
		pod     *corev1.Pod
		status  Status
		reason  string
		message string
	}{
		"it waits for processes": {said, pod(driverApp, waits), Waiting, "InUse", "python (12) of pod a/b holds nvidia_uvm; end it"},
		"it has ended":           {said, pod(driverApp, ended), Failed, "BuildFailed", "pod gpus/" + pod(driverApp).Name + ": container nvidia-driver-ctr ended with 3: nv-mmap.c:42: error: implicit declaration of follow_pfn; use driver 580.65.06 or later"},
		"it says nothing":        {node(unvalidated), pod(driverApp, waits), Waiting, ReasonNotReady, "pod gpus/" + pod(driverApp).Name + ": container nvidia-driver-ctr runs and is not ready yet"},
		"it was there before":    {said, pod(driverApp, waits), Waiting, ReasonNotReady, "pod gpus/" + pod(driverApp).Name + ": container nvidia-driver-ctr runs and is not ready yet"},
	} {
		if name != "it was there before" {
			c.pod.Labels[label.DriverContainer] = label.Product
		}
		p := Of(c.node, []*Pod{ObservePod(c.pod), ObservePod(pod(validatorApp))}, Wanted{States: Sequence()})
		require.Equal(t, []any{Driver, c.status, c.reason}, []any{p.State, p.Status, p.Reason}, name)
		require.Equal(t, strings.ReplaceAll(c.message, "gpus/", ObservePod(c.pod).Namespace+"/"), p.Message, name)
		require.Equal(t, c.status == Failed, p.Status == Failed && p.Pod(), name)
	}
}

func TestTerminationMessageOfGPUDriver(t *testing.T) {
	for message, want := range map[string][2]string{
		"": {"", ""},
		"a\ngpu-driver: InUse: x holds it; end it\n":     {"InUse", "x holds it; end it"},
		"gpu-driver: read /driver: permission denied":    {"", "read /driver: permission denied"},
		"gpu-driver: " + strings.Repeat("X", 64) + ": x": {"", strings.Repeat("X", 64) + ": x"},
		"Could not unload NVIDIA driver\nFailed: x":      {"", "Failed: x"},
		"gpu-toolkit: Failed: x":                         {"", "gpu-toolkit: Failed: x"},
	} {
		reason, text := TerminationMessage(message)
		require.Equal(t, want, [2]string{reason, text}, message)
	}
}

func TestRestartingValidatorHasNotFailed(t *testing.T) {
	without := validated(corev1.ConditionFalse, "InjectionMissing", "driver: the toolkit injects GPUs now, and this container was created without them")
	running := corev1.ContainerStatus{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	again := running
	again.RestartCount, again.LastTerminationState = 2, ended(0, "")
	for name, c := range map[string]struct {
		node      func(*fleet.Node)
		validator func(*corev1.Pod)
		status    Status
	}{
		"it runs still":           {without, unready(running), Waiting},
		"it has ended":            {without, unready(corev1.ContainerStatus{Name: "main", State: ended(0, "")}), Waiting},
		"again and again":         {without, unready(again), Failed},
		"the kubelet waits":       {without, unready(waits("CrashLoopBackOff", "")), Failed},
		"a pod was given no GPU":  {validated(corev1.ConditionFalse, "InjectionMissing", "cuda: the pod was given no GPU"), unready(running), Failed},
		"another reason":          {validated(corev1.ConditionFalse, "DriverFailed", "driver: x"), unready(running), Failed},
		"kept away after it said": {func(n *fleet.Node) { without(n); labelled(label.Deploy+"operator-validator", "false")(n) }, unready(running), Failed},
	} {
		pods := []*Pod{ObservePod(pod(driverApp)), ObservePod(pod(toolkitApp)), ObservePod(pod(pluginApp)), ObservePod(pod(validatorApp, c.validator))}
		at := DriverValidation
		if strings.HasPrefix(node(c.node).GPUReady.Message, "cuda: ") {
			at = PluginValidation
		}
		p := Of(node(c.node), pods, Wanted{States: Sequence()})
		require.Equal(t, at, p.State, name)
		require.Equal(t, c.status, p.Status, name)
		require.Equal(t, node(c.node).GPUReady.Reason, p.Reason, name)
	}
	none := Of(node(without), []*Pod{ObservePod(pod(driverApp))}, Wanted{States: Sequence()})
	require.Equal(t, Waiting, none.Status, "the next pod comes")
}

func TestUnwantedStatesAreNotAwaited(t *testing.T) {
	w := Wanted{States: []State{Prerequisites, DriverValidation, Toolkit, ToolkitValidation, DevicePlugin, PluginValidation}}
	p := Of(node(unvalidated), []*Pod{ObservePod(pod(validatorApp))}, w)
	require.Equal(t, DriverValidation, p.State, "the host has a driver")
	require.Equal(t, Ready, Of(node(without(label.GPUProduct)), nil, w).Status)
}

func TestNodeThatWasNotHandedOverIsExcluded(t *testing.T) {
	w := Wanted{States: Sequence(), HandOver: true}
	require.Equal(t, ReasonHandedOver, Of(node(), nil, w).Reason)
	require.Equal(t, Ready, Of(node(labelled(label.HandOver, label.Product)), nil, w).Status)
}

func TestNodeThatThePolicyDoesNotSelectIsExcluded(t *testing.T) {
	spec := &v1.ClusterPolicySpec{}
	spec.Daemonsets.NodeSelector = map[string]string{"pool": "gpus"}
	spec.Validator.NodeSelector = map[string]string{"stage": "production", "kubernetes.io/os": "windows", "a b": "c"}
	w := NewWanted(spec, false)
	for _, labels := range []map[string]string{{}, {"pool": "gpus"}, {"pool": "gpus", "stage": "test"}} {
		n := node()
		n.AllLabels = labels
		p := Of(n, nil, w)
		require.Equal(t, []any{Excluded, ReasonNotSelected}, []any{p.Status, p.Reason}, labels)
	}
	n := node()
	n.AllLabels = map[string]string{"pool": "gpus", "stage": "production"}
	require.Equal(t, Ready, Of(n, nil, w).Status)
	require.Equal(t, map[string]string{"pool": "gpus"}, spec.Daemonsets.NodeSelector)
}

func TestOnlyNodesThatServeClaimsWaitForTheDRADriver(t *testing.T) {
	spec := &v1.ClusterPolicySpec{}
	for name, c := range map[string]struct {
		enabled bool
		node    *fleet.Node
		pods    []*Pod
		state   State
		reason  string
	}{
		"serves by its device plugin": {true, node(), nil, "", "Ready"},
		"without a pod":               {true, node(labelled(label.Serve, "dra")), nil, DRADriver, ReasonNoPod},
		"its pod is not ready":        {true, node(labelled(label.Serve, "dra")), []*Pod{ObservePod(pod("gpu-dra-driver", unready(waits("ContainerCreating", ""))))}, DRADriver, ReasonStarting},
		"its pod is ready":            {true, node(labelled(label.Serve, "dra")), []*Pod{ObservePod(pod("gpu-dra-driver"))}, "", "Ready"},
		"a person keeps it away":      {true, node(labelled(label.Serve, "dra"), labelled(label.Deploy+label.DRAOperand, "false")), nil, "", "Ready"},
		"another's driver":            {false, node(labelled(label.Serve, "dra")), nil, "", "Ready"},
	} {
		spec.DRADriver.Enabled = &c.enabled
		p := Of(c.node, c.pods, NewWanted(spec, false))
		require.Equal(t, []any{c.state, c.reason}, []any{p.State, p.Reason}, name)
		require.Len(t, p.Steps, 8, "%s: it is no step of the road", name)
	}
}

func TestOtherFailuresAreReportedBeside(t *testing.T) {
	broken := unready(waits("ImagePullBackOff", "gone"))
	pods := []*Pod{ObservePod(pod("nvidia-dcgm-exporter", broken)), ObservePod(pod(driverApp, broken))}
	w := Wanted{States: append(Sequence(), DCGMExporter)}
	p := Of(node(), pods, w)
	require.Equal(t, Ready, p.Status, "a driver that is proven stays so until the validator says otherwise")
	require.Len(t, p.Others, 2)
	require.Equal(t, DCGMExporter, p.Others[0].State)
	p = Of(node(unvalidated), pods, w)
	require.Equal(t, []any{Driver, Failed}, []any{p.State, p.Status})
	require.Len(t, p.Others, 1)
}

// A node with a wrong clock is trusted like any other: its times are compared only with each
// other.
func TestNodesClockMayBeWrong(t *testing.T) {
	for _, ahead := range []time.Duration{-24 * time.Hour, -10 * time.Minute, 0, 10 * time.Minute, 24 * time.Hour} {
		n := node(func(n *fleet.Node) {
			n.Heartbeat, n.GPUReady.Renewed, n.GPUReady.Since = n.Heartbeat.Add(ahead), n.GPUReady.Renewed.Add(ahead), n.GPUReady.Since.Add(ahead)
		})
		require.Equal(t, Ready, Of(n, nil, Wanted{States: Sequence()}).Status, ahead)
		n.GPUReady.Renewed = n.Heartbeat.Add(-fleet.StaleAfter)
		require.Equal(t, ReasonStale, Of(n, []*Pod{ObservePod(pod(driverApp)), ObservePod(pod(validatorApp))}, Wanted{States: Sequence()}).Reason, ahead)
	}
}
