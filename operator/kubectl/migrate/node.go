package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// Side names the operator that serves a node.
type Side string

// The sides.
const (
	NVIDIA   Side = "nvidia"
	GPUReady Side = "gpuready"
	Between  Side = "moving" // its labels are on the way from one side to the other
	Nobody   Side = "nobody" // a person keeps all operands off, or no operator runs
)

const (
	migState = "nvidia.com/mig.config.state"
	// maxNamed bounds the pods that a sentence names.
	maxNamed = 5
)

// sideOf returns who serves a node by its labels.
func (s *Snapshot) sideOf(node *corev1.Node) Side {
	owner, off := node.Labels[label.HandOver], node.Labels[label.Operands] == "false"
	switch nvidias := runs(s.NVIDIA); {
	case owner == Moving, nvidias && owner == label.Product && !off:
		return Between
	case owner == label.Product && runs(s.GPUReady):
		return GPUReady
	case off:
		return Nobody
	case nvidias:
		return NVIDIA
	case runs(s.GPUReady):
		return GPUReady
	}
	return Nobody
}

func runs(all []Operator) bool {
	return slices.ContainsFunc(all, func(o Operator) bool { return o.Runs })
}

// refusals lists why a node is not to be moved to a side, each with what to do. None of them can be
// seen from the labels of operands alone. withPods accepts that pods use the GPUs of a node whose
// driver is a container.
func (s *Snapshot) refusals(view cluster.NodeView, to Side, withPods bool) (all []string) {
	node, observed := view.Node, fleet.Observe(view.Node)
	add := func(is bool, format string, args ...any) {
		if is {
			all = append(all, clean(fmt.Sprintf(format, args...)))
		}
	}
	add(!observed.GPU, "no label says that it has an NVIDIA GPU: label it nvidia.com/gpu.present=true if NFD cannot see the GPU")
	add(!observed.Ready, "the Node is not Ready: see kubectl describe node %s", node.Name)
	handedOver := node.Labels[label.HandOver] == label.Product
	add(s.sideOf(node) == Nobody && !handedOver, "the label %s=false keeps all operands off: remove it, or leave the node as it is", label.Operands)
	add(s.sideOf(node) == Nobody && handedOver && to == GPUReady, "the label %s=%s gives it to gpuready's operator, which does not run: %s, or give the node back: kubectl gpu migrate back %s", label.HandOver, label.Product, s.startGPUReady(), node.Name)
	state := upgrade.State(node.Labels[label.UpgradeState])
	add(state.InFlight(), "an upgrade of its driver is in progress (%s): wait for its end", state)
	mig := node.Labels[migState]
	add(mig == "pending" || mig == "rebooting", "a change of its MIG layout is in progress (%s): wait for its end", mig)
	users := s.users(view)
	add(!withPods && len(users) > 0 && s.hasDriverPod(view, to),
		"its driver is a container's, and pods use its GPUs, which keeps the driver loaded: %s. The next driver container can load only when they have ended, and new pods get no GPU until then. Let them end, or accept this with --with-gpu-pods", list(users))
	if to == NVIDIA {
		return append(all, s.stuckOperands(view)...)
	}
	if use := node.Labels[label.Workload]; use != "" && use != "container" {
		add(true, "its use is %s (label %s): gpuready serves containers only", use, label.Workload)
	}
	problem := s.driverProblem(observed)
	add(problem != "", "gpuready would not place a driver on it: %s", problem)
	for _, key := range keptOff(node) {
		add(true, "the label %s=false keeps one operand off, and NVIDIA's operator removes that label from a node that is handed over: disable the operand in the policy, or remove the label", key)
	}
	if s.InForce != nil && s.InForce.Spec.Driver.IsEnabled() && !s.InForce.Spec.Driver.UsesNVIDIADrivers() && s.hasDriverPod(view, to) {
		if choice := driver.Choose(&s.InForce.Spec, observed.Pool, node.Name, s.Driver); choice.Problem != nil {
			add(true, "driver: %s: %s", choice.Problem.Reason, choice.Problem.Message)
		}
	}
	for handler, pods := range s.handlerUsers(view, observed.Injection) {
		add(true, "NVIDIA's toolkit takes the handler %s along when it leaves the node, and containers of these pods could not start again: %s. Set toolkit.env CONTAINERD_RUNTIME_CLASS=%[1]s in the policy, and gpuready's toolkit adds the handler", handler, list(pods))
	}
	return all
}

// startGPUReady says how to start gpuready's operator.
func (s *Snapshot) startGPUReady() string {
	if len(s.GPUReady) == 0 {
		return "install it again"
	}
	return s.GPUReady[0].start()
}

// stuckOperands describes gpuready's pods on a node that stay when the node gets the labels of the
// first step. The label of the hand-over places pods while NVIDIA's operator runs. Those that
// were created before it ran have other labels, which only gpuready's operator removes.
func (s *Snapshot) stuckOperands(view cluster.NodeView) []string {
	stuck := slices.DeleteFunc(s.leaving(view, NVIDIA), func(p *corev1.Pod) bool { return p.Spec.NodeSelector[label.HandOver] == label.Product })
	if len(stuck) == 0 || slices.ContainsFunc(s.GPUReady, func(o Operator) bool { return o.Ready }) {
		return nil
	}
	start := s.startGPUReady()
	if runs(s.GPUReady) {
		start = s.GPUReady[0].describe() + " says why it is not"
	}
	return []string{fmt.Sprintf("gpuready's operator is not ready, and only it takes these pods off the node: %s. Either %s, or delete its DaemonSets: kubectl -n %s delete daemonset -l %s=%s",
		list(podNames(stuck)), start, stuck[0].Namespace, label.PartOf, label.Product)}
}

// leaving returns the pods that must have ended before a side gets a node. Pods of gpuready's that
// no DaemonSet owns do not keep the driver in use.
func (s *Snapshot) leaving(view cluster.NodeView, to Side) []*corev1.Pod {
	if to == GPUReady {
		return s.theirsOn(view, "")
	}
	return slices.DeleteFunc(s.oursOn(view), func(p *corev1.Pod) bool { return !isDaemons(p) })
}

// driverProblem describes why no NVIDIADriver can serve a node, or returns "". A host's own driver
// needs none.
func (s *Snapshot) driverProblem(n *fleet.Node) string {
	if s.Drivers == nil || n.HostDriver() {
		return ""
	}
	selected, found := n.WithDrivers(s.Drivers.Of(n.Name, n.AllLabels)), false
	choice := s.Drivers.Choose(&s.InForce.Spec, selected.Pool, n.Name, func(*v1.ClusterPolicySpec) driver.Facts {
		found = true
		return driver.Facts{} // its image is not looked at
	})
	if found || choice.Problem == nil {
		return ""
	}
	return choice.Problem.Message
}

// keptOff returns the labels by which a person keeps single operands off a node.
func keptOff(node *corev1.Node) (keys []string) {
	for key, value := range node.Labels {
		if strings.HasPrefix(key, label.Deploy) && key != label.Operands && value == "false" {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// users returns the pods on a node that have GPUs, as namespace/name, without those of the operators.
func (s *Snapshot) users(view cluster.NodeView) (names []string) {
	for i := range view.Pods {
		if p := &view.Pods[i]; isAlive(p) && s.usesGPU(p) && !s.isOperand(p) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(names)
	return names
}

func isAlive(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// usesGPU reports whether a pod uses GPUs, by the rules of driver upgrades: it requests them, or its
// RuntimeClass or a ResourceClaim gives it some. Any claim counts if the claims are not known.
func (s *Snapshot) usesGPU(p *corev1.Pod) bool {
	observed := upgrade.ObservePod(p)
	gives, known := s.Classes[observed.Class]
	if !known {
		gives = upgrade.GPUHandler(observed.Class)
	}
	return observed.GPU || gives || slices.ContainsFunc(upgrade.Claims(p), func(name string) bool { return s.Claims == nil || s.Claims[p.Namespace+"/"+name] })
}

// isOperand reports whether a pod is in a namespace of an operator or its operands.
func (s *Snapshot) isOperand(p *corev1.Pod) bool {
	return slices.Contains(s.theirs, p.Namespace) || slices.Contains(s.ours, p.Namespace)
}

// hasDriverPod reports whether a driver container runs on a node on the side that the node leaves.
func (s *Snapshot) hasDriverPod(view cluster.NodeView, to Side) bool {
	if to == NVIDIA {
		return slices.ContainsFunc(s.oursOn(view), func(p *corev1.Pod) bool { return p.Labels["app"] == label.DriverApp })
	}
	return len(s.theirsOn(view, label.DriverOperand)) > 0
}

// theirsOn returns NVIDIA's pods on a node: those of an operand, or of all if it is "". A label of
// the operand places them.
func (s *Snapshot) theirsOn(view cluster.NodeView, operand string) (found []*corev1.Pod) {
	for i := range view.Pods {
		p := &view.Pods[i]
		if !isIn(s.theirs, p) || !isAlive(p) || !isDaemons(p) || p.Labels[label.PartOf] == label.Product {
			continue
		}
		for key := range p.Spec.NodeSelector {
			if name, is := strings.CutPrefix(key, label.Deploy); is && (operand == "" || operand == name) {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

// isIn reports whether a pod is in one of the namespaces of an operator. If that is uninstalled and
// has left no DaemonSet, its namespaces are not known, and pods of any may be its last ones.
func isIn(namespaces []string, p *corev1.Pod) bool {
	return len(namespaces) == 0 || slices.Contains(namespaces, p.Namespace)
}

// isDaemons reports whether a DaemonSet controls a pod.
func isDaemons(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet"
}

// handlerUsers returns the users' pods on a node by the runtime handler that they need, for the
// handlers that no toolkit adds once NVIDIA's has left the node.
func (s *Snapshot) handlerUsers(view cluster.NodeView, i fleet.Injection) map[string][]string {
	found := map[string][]string{}
	if s.InForce == nil || len(s.theirsOn(view, "container-toolkit")) == 0 {
		return nil // the handler is not NVIDIA's toolkit's
	}
	for j := range view.Pods {
		p := &view.Pods[j]
		if p.Spec.RuntimeClassName == nil || !isAlive(p) || s.isOperand(p) {
			continue
		}
		if handler := s.Handlers[*p.Spec.RuntimeClassName]; handler == theirHandler(&s.InForce.Spec) && handler != ourHandler(&s.InForce.Spec, i) {
			found[handler] = append(found[handler], p.Namespace+"/"+p.Name)
		}
	}
	return found
}

// theirHandler returns the handler that NVIDIA's toolkit adds with a policy.
func theirHandler(spec *v1.ClusterPolicySpec) string {
	return cmp.Or(namedHandler(spec), spec.Operator.RuntimeClass, "nvidia")
}

// ourHandler returns the handler that gpuready's toolkit adds on nodes with an injection, or "".
func ourHandler(spec *v1.ClusterPolicySpec, i fleet.Injection) string {
	byNRI := spec.CDI.NRIPluginEnabled
	switch {
	case !spec.Toolkit.IsEnabled():
		return ""
	case i == fleet.Handler || !spec.CDI.IsEnabled():
		return theirHandler(spec)
	case i == fleet.NRI && byNRI != nil && *byNRI:
		return ""
	case spec.Operator.RuntimeClass != "" && spec.Operator.RuntimeClass != "nvidia":
		return theirHandler(spec)
	}
	return namedHandler(spec)
}

// namedHandler returns the handler that toolkit.env of a policy names, or "".
func namedHandler(spec *v1.ClusterPolicySpec) string {
	for _, name := range []string{"NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME", "CRIO_RUNTIME_CLASS"} {
		for _, e := range spec.Toolkit.Env {
			if e.Name == name && e.Value != "" {
				return e.Value
			}
		}
	}
	return ""
}

// oursOn returns gpuready's operands on a node.
func (s *Snapshot) oursOn(view cluster.NodeView) (found []*corev1.Pod) {
	for i := range view.Pods {
		p := &view.Pods[i]
		if isIn(s.ours, p) && p.Labels[label.PartOf] == label.Product && progress.ObservePod(p).State != "" && isAlive(p) {
			found = append(found, p)
		}
	}
	return found
}

// obstacle describes why a node is not ready on gpuready's side, or returns "".
func (s *Snapshot) obstacle(view cluster.NodeView) string {
	if s.InForce == nil {
		return "there is no ClusterPolicy"
	}
	var pods []*progress.Pod
	var validator *corev1.Pod
	for _, p := range s.oursOn(view) {
		observed := progress.ObservePod(p)
		pods = append(pods, observed)
		if observed.State == progress.DriverValidation && observed.Ready {
			validator = p
		}
	}
	observed := fleet.Observe(view.Node)
	found := progress.Of(observed, pods, progress.NewWanted(&s.InForce.Spec, runs(s.NVIDIA)))
	switch {
	case found.Status != progress.Ready && found.State != "":
		return clean(fmt.Sprintf("%s: %s: %s", found.State, found.Reason, found.Message))
	case found.Status != progress.Ready:
		return clean(found.Reason + ": " + found.Message)
	case validator == nil || isOlder(observed.GPUReady, validator):
		return "driver-validation: the validator has not reported yet"
	}
	return ""
}

// isOlder reports whether a condition was written before the pod's container started: by an earlier
// validator, when the node was gpuready's before. The node's clock gives both times.
func isOlder(c fleet.Condition, p *corev1.Pod) bool {
	written := c.Renewed
	if written.Before(c.Since) {
		written = c.Since
	}
	for _, status := range p.Status.ContainerStatuses {
		if r := status.State.Running; r != nil && written.Before(r.StartedAt.Time) {
			return true
		}
	}
	return false
}

// nvidiaObstacle describes why a node is not ready on NVIDIA's side, or returns "": each of NVIDIA's
// DaemonSets that selects the node has a ready pod there.
func (s *Snapshot) nvidiaObstacle(view cluster.NodeView) string {
	var waits []string
	selected := 0
	for i := range s.Operands.NVIDIA {
		set := &s.Operands.NVIDIA[i]
		if !labels.SelectorFromSet(set.Spec.Template.Spec.NodeSelector).Matches(labels.Set(view.Node.Labels)) {
			continue
		}
		selected++
		if !hasReadyPod(view, set) {
			waits = append(waits, set.Name)
		}
	}
	switch {
	case selected == 0:
		return "NVIDIA's operator has not placed its operands yet"
	case len(waits) > 0:
		return "these are not ready: " + list(waits)
	}
	return ""
}

func hasReadyPod(view cluster.NodeView, set *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(view.Pods, func(p corev1.Pod) bool {
		// By its name: the operator may have created the DaemonSet again since.
		return p.Namespace == set.Namespace && isDaemons(&p) && metav1.GetControllerOf(&p).Name == set.Name && progress.ObservePod(&p).Ready
	})
}

// list joins names and bounds their number.
func list(names []string) string {
	slices.Sort(names)
	if more := len(names) - maxNamed; more > 0 {
		return strings.Join(names[:maxNamed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

func podNames(pods []*corev1.Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}
