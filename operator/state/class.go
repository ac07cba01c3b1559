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

// Nodes are grouped by their injection: how they give GPUs to containers, by CDI, NRI or the toolkit's
// handler. Pods that were written for NVIDIA's stack name the RuntimeClass nvidia. With CDI or NRI a
// container gets the GPUs that it requests as a resource whatever the class's handler is. So the class may name a handler that every
// node already has, such as runc, and no container runtime is restarted to add one
// (docs/decisions/0050-runtimeclass-nvidia-gets-the-handler-that-every-node-has.md). chooseHandler says which it is.

// plainHandlers are the handlers of OCI runtimes that run every container, in the order in which they
// are chosen. Sandboxes such as Kata are not among them.
var plainHandlers = []string{"runc", "crun", "youki"}

// aliases are further names of the RuntimeClass. NVIDIA's operator adds them if the policy enables CDI.
var aliases = []string{"nvidia-cdi", "nvidia-legacy"}

// prerequisites renders the state of that name: the RuntimeClass and its aliases, if there are GPU nodes
// and the policy enables the toolkit or the device plugin. If NVIDIA's own operands need the toolkit's
// handler and the class names a different one, it adds a second class for them.
func (r *renderer) prerequisites() error {
	if len(r.injections) == 0 || !r.spec.Toolkit.IsEnabled() && !r.spec.DevicePlugin.IsEnabled() {
		return nil
	}
	handler, lacking := r.chooseHandler()
	r.reportClass(handler, lacking)
	classes := map[string]string{r.runtimeClass(): handler}
	if enabled := r.spec.CDI.Enabled; enabled != nil && *enabled {
		for _, name := range aliases {
			classes[name] = handler
		}
	}
	if name := r.operandClass(); name != r.runtimeClass() {
		classes[name] = r.toolkitHandler()
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

// chooseHandler chooses the handler of the RuntimeClass, and returns the injections whose nodes do not
// have it. It is the toolkit's handler if all nodes have it, if some nodes need it, or if none of
// plainHandlers is on every node; otherwise the first of plainHandlers that is.
func (r *renderer) chooseHandler() (handler string, lacking []fleet.Injection) {
	handler = r.toolkitHandler()
	lacking = r.injectionsLacking(handler)
	if len(lacking) == 0 || slices.ContainsFunc(r.injections, r.needsToolkitHandler) {
		return handler, lacking
	}
	for _, name := range plainHandlers {
		if len(r.injectionsLacking(name)) == 0 {
			return name, nil
		}
	}
	return handler, lacking
}

// injectionsLacking returns the injections whose nodes do not have a handler.
func (r *renderer) injectionsLacking(name string) (lacking []fleet.Injection) {
	for _, i := range r.injections {
		isAdded := name == r.toolkitHandler() && r.toolkitAddsHandler(i)
		if !isAdded && !slices.Contains(r.handlersOf(i), name) {
			lacking = append(lacking, i)
		}
	}
	return lacking
}

// toolkitAddsHandler reports whether a toolkit adds its handler on nodes with an injection. If ours is not
// enabled, somebody else's is assumed to, unless the nodes report their handlers.
func (r *renderer) toolkitAddsHandler(i fleet.Injection) bool {
	if r.spec.Toolkit.IsEnabled() {
		return r.offersToolkitHandler(i)
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
func (r *renderer) reportClass(handler string, lacking []fleet.Injection) {
	class, owner := r.runtimeClass(), ""
	if other, foreign := r.in.Classes[class]; foreign { // somebody else has made this RuntimeClass
		handler, owner = other, ", which is not the operator's,"
		// Its handler may be any: nodes that do not report their handlers may have it.
		lacking = slices.DeleteFunc(r.injectionsLacking(other), func(i fleet.Injection) bool { return r.in.Handlers[i] == nil })
	}
	if len(lacking) == 0 {
		return
	}
	var names []string
	for _, i := range lacking {
		names = append(names, string(i))
	}
	r.unserved(fmt.Sprintf("runtimeClassName %s fails on nodes with gpuready.io/injection=%s: the RuntimeClass%s has handler %s; omit it, or set toolkit.env CONTAINERD_RUNTIME_CLASS=%[4]s",
		class, strings.Join(names, ","), owner, handler))
}

// operandClass returns the RuntimeClass of NVIDIA's operands on nodes without NRI. They request no resource, but
// name GPUs in NVIDIA_VISIBLE_DEVICES, which the toolkit's handler and NRI follow and CDI does not.
func (r *renderer) operandClass() string {
	handler, _ := r.chooseHandler()
	needed := r.wantsNVIDIA() && slices.ContainsFunc(r.injections, func(i fleet.Injection) bool { return i != fleet.NRI })
	if needed && handler != r.toolkitHandler() {
		return label.Product + "-" + r.toolkitHandler()
	}
	return r.runtimeClass()
}
