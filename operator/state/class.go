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

// Pods that were written for NVIDIA's stack name the RuntimeClass nvidia. With CDI or NRI a container
// gets its GPUs whatever the class's handler is. So the class names a handler that every node already
// has, such as runc, and no container runtime is restarted to add one
// (docs/decisions/0050-the-runtimeclass-nvidia.md). The toolkit's own handler is named only where
// some nodes need it. An injection is the way in which a group of nodes gives GPUs to containers.

// plainHandlers are the handlers of OCI runtimes that run every container, in the order in which they
// are chosen. Sandboxes such as Kata are not among them.
var plainHandlers = []string{"runc", "crun", "youki"}

// aliases are further names of the RuntimeClass. NVIDIA's operator adds them if the policy enables CDI.
var aliases = []string{"nvidia-cdi", "nvidia-legacy"}

// prerequisites adds the RuntimeClass and its aliases, if there are GPU nodes and the policy enables
// the toolkit or the device plugin. If NVIDIA's own operands need the toolkit's handler and that
// class names another one, it adds a second class for them.
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

// classHandler chooses the handler of the RuntimeClass, and returns the injections whose nodes do not
// have it. It is the toolkit's handler if all nodes have it or some need it, otherwise the first of
// plainHandlers that all nodes have, and without such a one the toolkit's after all.
func (r *renderer) classHandler() (handler string, without []fleet.Injection) {
	handler = r.handler()
	without = r.injectionsLacking(handler)
	if len(without) == 0 || slices.ContainsFunc(r.injections, r.usesHandler) {
		return handler, without
	}
	for _, name := range plainHandlers {
		if len(r.injectionsLacking(name)) == 0 {
			return name, nil
		}
	}
	return handler, without
}

// injectionsLacking returns the injections whose nodes do not have a handler.
func (r *renderer) injectionsLacking(name string) (without []fleet.Injection) {
	for _, i := range r.injections {
		if (name != r.handler() || !r.givesHandler(i)) && !slices.Contains(r.handlersOf(i), name) {
			without = append(without, i)
		}
	}
	return without
}

// givesHandler reports whether a toolkit adds its handler on nodes with an injection. If ours is not
// enabled, somebody else's is assumed to, unless the nodes report their handlers.
func (r *renderer) givesHandler(i fleet.Injection) bool {
	if r.spec.Toolkit.IsEnabled() {
		return r.hasHandler(i)
	}
	return r.in.Handlers[i] == nil
}

// handlersOf returns the handlers that nodes with an injection have. If their kubelets report none, it
// is runc: containerd always has it, and so do the releases of CRI-O that report none.
func (r *renderer) handlersOf(i fleet.Injection) []string {
	if known := r.in.Handlers[i]; known != nil {
		return known
	}
	return []string{"runc"}
}

// reportClass reports in the policy's status on which nodes pods with the RuntimeClass do not start.
func (r *renderer) reportClass(handler string, without []fleet.Injection) {
	class, owner := r.runtimeClass(), ""
	if other, foreign := r.in.Classes[class]; foreign { // somebody else has made this RuntimeClass
		handler, owner = other, ", which is not the operator's,"
		// Its handler may be any: nodes that do not report their handlers may have it.
		without = slices.DeleteFunc(r.injectionsLacking(other), func(i fleet.Injection) bool { return r.in.Handlers[i] == nil })
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

// operandClass returns the RuntimeClass of NVIDIA's operands. On nodes without NRI they get their GPUs
// only by the toolkit's handler.
func (r *renderer) operandClass() string {
	handler, _ := r.classHandler()
	needed := r.wantsNVIDIA() && slices.ContainsFunc(r.injections, func(i fleet.Injection) bool { return i != fleet.NRI })
	if needed && handler != r.handler() {
		return label.Product + "-" + r.handler()
	}
	return r.runtimeClass()
}
