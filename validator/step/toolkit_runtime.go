package step

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

// nodeLag is the time in which the Node may not list a new handler of the runtime yet: the
// kubelet asks the runtime every 5 seconds and reports to the API server every 10.
const nodeLag = 30 * time.Second

// classHandler is the handler of the RuntimeClass nvidia.
const classHandler = "nvidia"

// checkRuntime checks that the runtime resolves CDI names, according to the toolkit.
func checkRuntime(_ check.Node, _ check.Driver, state nodestate.State, _ []cdi.File) finding {
	r := toolkitRuntime(state)
	switch {
	case r == nil:
		return finding{}
	case r.CDI != nil && !*r.CDI:
		return refuse(reasonRuntime, "the container runtime does not resolve CDI names: "+r.Message, "change its configuration as the message says and restart it")
	case !readsSpec(*r, specPath(state)):
		return refuse(reasonRuntime, fmt.Sprintf("the container runtime %s does not read the CDI specifications in %s: %s", r.Name, path.Dir(specPath(state)), r.Message),
			"change its configuration as the message says and restart it")
	case r.Message != "":
		return finding{notes: []string{"the toolkit says of the container runtime: " + r.Message}}
	}
	return finding{}
}

// readsSpec reports whether the runtime reads a specification, as far as it is known.
func readsSpec(r nodestate.Runtime, spec string) bool {
	return spec == "" || len(r.CDIDirs) == 0 || slices.ContainsFunc(r.CDIDirs, func(dir string) bool { return canonical(dir) == path.Dir(spec) })
}

// checkHandlers checks that runtime and kubelet know the wanted handler.
func checkHandlers(node check.Node, _ check.Driver, state nodestate.State, _ []cdi.File) finding {
	r := toolkitRuntime(state)
	wanted := ""
	if state.Toolkit != nil {
		wanted = state.Toolkit.Handler
	}
	if wanted != "" && r != nil && len(r.Handlers) > 0 && !slices.Contains(r.Handlers, wanted) {
		return refuse(reasonHandler, fmt.Sprintf("the container runtime %s has no handler %q, which the toolkit is to give it; it has %s", r.Name, wanted, strings.Join(r.Handlers, ", ")),
			"gpu-toolkit configures it (--nvidia-runtime-name): its log says what keeps it from that, gpu-toolkit plan what to write by hand; then restart the runtime")
	}
	known := node.KnownStatus().Handlers
	if len(known) == 0 { // kubelets before 1.31 and runtimes before containerd 2.0 tell none
		return finding{}
	}
	has := fmt.Sprintf("; the Node's status.runtimeHandlers has %s", strings.Join(known, ", "))
	switch {
	case wanted != "" && !slices.Contains(known, wanted) && time.Since(state.Time) >= nodeLag:
		return refuse(reasonHandler, fmt.Sprintf("the kubelet does not know the handler %q, which the toolkit is to give the runtime%s", wanted, has),
			"see that the runtime whose socket the toolkit asks is the kubelet's (--runtime-socket, kubelet's --container-runtime-endpoint); else restart the kubelet")
	case wanted != "" && !slices.Contains(known, wanted):
		return finding{again: true, notes: []string{fmt.Sprintf("the kubelet does not know the handler %q yet%s", wanted, has)}}
	case wanted == "" && r != nil && slices.Contains(r.Handlers, classHandler) && !slices.Contains(known, classHandler):
		return finding{notes: []string{fmt.Sprintf("the runtime has a handler %q that the kubelet does not know%s: pods of the RuntimeClass do not start", classHandler, has)}}
	}
	return finding{}
}
