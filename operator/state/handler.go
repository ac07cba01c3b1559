package state

import (
	"fmt"
	"path"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
)

// defaultRuntimeClass is the schema's default, which does not mean that a handler is wanted.
const defaultRuntimeClass = "nvidia"

// The variables of the toolkit that name the handler, and those that make it the default. The
// first that is set counts.
var (
	handlerVariables = []string{"NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME", "CRIO_RUNTIME_CLASS"}
	defaultVariables = []string{"NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT", "CRIO_SET_AS_DEFAULT"}
)

func (r *renderer) runtimeClass() string {
	// A handler's name is a single DNS label; a RuntimeClass's name may be longer.
	class := r.name("operator.runtimeClass", r.spec.Operator.RuntimeClass, defaultRuntimeClass)
	if class == "" || len(validation.IsDNS1123Label(class)) > 0 {
		return defaultRuntimeClass
	}
	return class
}

// toolkitEnv returns the value of the first of the toolkit's variables that the policy sets.
func (r *renderer) toolkitEnv(names ...string) string {
	for _, name := range names {
		for _, e := range r.spec.Toolkit.Env {
			if e.Name == name && e.Value != "" {
				return e.Value
			}
		}
	}
	return ""
}

// namedHandler returns the handler that the policy's toolkit.env names for the nodes with an
// injection, as the setting for k3s and RKE2 that NVIDIA documents does. It is "" if none is named,
// or if the policy leaves the runtime alone where there is NRI.
func (r *renderer) namedHandler(i fleet.Injection) string {
	name := r.toolkitEnv(handlerVariables...)
	if byNRI := r.spec.CDI.NRIPluginEnabled; len(validation.IsDNS1123Label(name)) > 0 || i == fleet.NRI && byNRI != nil && *byNRI {
		return ""
	}
	return name
}

// toolkitHandler returns the name of the handler on nodes that have it.
func (r *renderer) toolkitHandler() string {
	for _, i := range r.injections {
		if name := r.namedHandler(i); name != "" {
			return name
		}
	}
	return r.runtimeClass()
}

// needsToolkitHandler reports whether users' containers get GPUs by the runtime handler: if nothing
// else works, or if the policy disables CDI.
func (r *renderer) needsToolkitHandler(i fleet.Injection) bool {
	return i == fleet.Handler || !r.spec.CDI.IsEnabled()
}

// offersToolkitHandler reports whether nodes with an injection have the handler. It is needed for users'
// containers, for a handler that the policy names, for a RuntimeClass with its own name, or for
// NVIDIA's operands, which have no other way to their GPUs without NRI.
func (r *renderer) offersToolkitHandler(i fleet.Injection) bool {
	return r.needsToolkitHandler(i) || r.namedHandler(i) != "" || r.runtimeClass() != defaultRuntimeClass || i != fleet.NRI && r.wantsNVIDIA()
}

// isDefault reports whether the handler is the default of nodes whose users' containers need it.
// The policy's toolkit.env may decide otherwise; then pods name the RuntimeClass.
func (r *renderer) isDefault() bool {
	value, err := strconv.ParseBool(r.toolkitEnv(defaultVariables...))
	return err != nil || value
}

// setHandler sets the toolkit's variables of the handler that the policy does not set itself.
func (r *renderer) setHandler(c *corev1.Container, i fleet.Injection) {
	if r.offersToolkitHandler(i) && r.namedHandler(i) == "" {
		setEnv(c, v1.EnvVar{Name: "NVIDIA_RUNTIME_NAME", Value: r.toolkitHandler()})
	}
	if !r.needsToolkitHandler(i) {
		return
	}
	// Pods that request nvidia.com/gpu name no RuntimeClass. They request GPUs by mounts, not by
	// environment variables, which images can set.
	if r.toolkitEnv(defaultVariables...) == "" {
		setEnv(c, v1.EnvVar{Name: "NVIDIA_RUNTIME_SET_AS_DEFAULT", Value: "true"})
	}
	setEnv(c, v1.EnvVar{Name: "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS", Value: "true"})
}

// installFolder is the folder of the toolkit's programs below the install directory. NVIDIA's toolkit
// removes all of the folder toolkit there when it starts, and a program may be in use by containers
// that were created with it.
const installFolder = "gpuready"

// moveInstallDir moves the toolkit's programs to the directory that the policy's toolkit.env
// names: into installFolder below it, as NVIDIA's toolkit installs into toolkit below it.
func (r *renderer) moveInstallDir(d *appsv1.DaemonSet, c *corev1.Container) {
	const ours, theirs = "TOOLKIT_INSTALL_DIR", "ROOT"
	dir := r.toolkitEnv(ours, theirs)
	if dir == "" {
		return
	}
	c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == ours || e.Name == theirs })
	if path.Base(dir) == "toolkit" {
		dir = path.Dir(dir)
	}
	if at := r.moveVolume(d, "toolkit.env."+ours, "programs", "/host", v1.HostPath(dir), installFolder); at != "" {
		setEnv(c, v1.EnvVar{Name: ours, Value: at})
	}
}

// reportUnfollowed reports the settings of NVIDIA's programs that ours accept and do not follow.
func (r *renderer) reportUnfollowed(field string, settings []nvidia.Setting, env []v1.EnvVar) {
	for _, e := range env {
		if why := nvidia.Unfollowed(settings, e.Name, e.Value); why != "" && e.Name != "ROOT" {
			r.unserved(fmt.Sprintf("%s %s: %s", field, e.Name, why))
		}
	}
}
