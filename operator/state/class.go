package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// Pods that were written for NVIDIA's stack name the RuntimeClass nvidia. Where containers get
// their GPUs by CDI, any handler gives them, so the class has one that every node has anyway, and
// no container runtime is restarted for it (docs/decisions/0050-the-runtimeclass-nvidia.md).

// ordinary are the handlers of OCI runtimes that run every container, in the order in which they
// are chosen. Sandboxes such as Kata are not among them.
var ordinary = []string{"runc", "crun", "youki"}

// aliases are the RuntimeClasses that NVIDIA's operator adds if the policy enables CDI.
var aliases = []string{"nvidia-cdi", "nvidia-legacy"}

// prerequisites adds the RuntimeClass if anything serves GPUs to containers, and its aliases. It
// adds another one for NVIDIA's operands if they need the handler and the first one does not have
// it.
func (r *renderer) prerequisites() error {
	if len(r.injections) == 0 || !r.spec.Toolkit.IsEnabled() && !r.spec.DevicePlugin.IsEnabled() {
		return nil
	}
	handler, without := r.classHandler()
	r.reportClass(handler, without)
	classes := map[string]string{r.runtimeClass(): handler}
	if enabled := r.spec.CDI.Enabled; enabled != nil && *enabled {
		for _, name := range aliases {
			classes[name] = handler
		}
	}
	if name := r.operandClass(); name != r.runtimeClass() {
		classes[name] = r.handler()
	}
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		if err := r.addClass(name, classes[name]); err != nil {
			return err
		}
	}
	return nil
}

func (r *renderer) addClass(name, handler string) error {
	return r.add(progress.Prerequisites, &nodev1.RuntimeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Handler:    handler,
	})
}

// classHandler returns the handler of the RuntimeClass, and the injections whose nodes do not
// have it.
func (r *renderer) classHandler() (handler string, without []fleet.Injection) {
	handler = r.handler()
	without = r.withoutHandler(handler)
	if len(without) == 0 || slices.ContainsFunc(r.injections, r.usesHandler) {
		return handler, without
	}
	for _, name := range ordinary {
		if len(r.withoutHandler(name)) == 0 {
			return name, nil
		}
	}
	return handler, without
}

// withoutHandler returns the injections whose nodes do not have a handler.
func (r *renderer) withoutHandler(name string) (without []fleet.Injection) {
	for _, i := range r.injections {
		if (name != r.handler() || !r.givesHandler(i)) && !slices.Contains(r.handlersOf(i), name) {
			without = append(without, i)
		}
	}
	return without
}

// givesHandler reports whether the toolkit, ours or another, adds the handler on nodes with an
// injection.
func (r *renderer) givesHandler(i fleet.Injection) bool {
	return !r.spec.Toolkit.IsEnabled() && r.in.Handlers[i] == nil || r.spec.Toolkit.IsEnabled() && r.hasHandler(i)
}

// handlersOf returns the handlers that nodes with an injection have. A container runtime whose
// kubelet reports none has runc: containerd always, and CRI-O in the releases before it reports.
func (r *renderer) handlersOf(i fleet.Injection) []string {
	if known := r.in.Handlers[i]; known != nil {
		return known
	}
	return []string{"runc"}
}

// reportClass reports nodes on which pods with the RuntimeClass do not start.
func (r *renderer) reportClass(handler string, without []fleet.Injection) {
	class, owner := r.runtimeClass(), ""
	if other, foreign := r.in.Classes[class]; foreign {
		handler, owner = other, ", which is not the operator's,"
		without = slices.DeleteFunc(r.withoutHandler(other), func(i fleet.Injection) bool { return r.in.Handlers[i] == nil }) // not known
	}
	if len(without) == 0 {
		return
	}
	var names []string
	for _, i := range without {
		names = append(names, string(i))
	}
	r.unserved(fmt.Sprintf("runtimeClassName %s fails on nodes with gpuready.io/injection=%s: the RuntimeClass%s has handler %s; omit it, or set toolkit.env CONTAINERD_RUNTIME_CLASS=%[4]s",
		class, strings.Join(names, ","), owner, handler))
}

// operandClass returns the RuntimeClass of NVIDIA's operands on nodes without NRI. They have no
// other way to their GPUs than the handler.
func (r *renderer) operandClass() string {
	handler, _ := r.classHandler()
	needed := r.wantsNVIDIA() && slices.ContainsFunc(r.injections, func(i fleet.Injection) bool { return i != fleet.NRI })
	if needed && handler != r.handler() {
		return label.Product + "-" + r.handler()
	}
	return r.runtimeClass()
}
