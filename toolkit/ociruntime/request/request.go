// Package request works out which GPUs a container asks for, and whether it may.
// It knows nothing of what there is: that is for package inject.
//
// A container asks, in this order, by annotations (CDI names), by mounts of /dev/null
// (a device plugin's), by environment variables. What an image can set for itself is
// the environment, and that is why it is believed least.
package request

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuready/gpuready/toolkit/capability"
	"github.com/gpuready/gpuready/toolkit/ociruntime/settings"
)

// Request is what a container is to be given.
type Request struct {
	// Devices are names of GPUs as they were asked for: "all", an index "0", a GPU and
	// its MIG device "0:1", a UUID, or a CDI name "vendor/class=name".
	Devices []string
	// DriverOnly asks for the driver's files without a device.
	DriverOnly   bool
	Capabilities capability.Set
	MIGConfig    bool     // all MIG devices may be made and removed
	MIGMonitor   bool     // all MIG devices may be seen
	Channels     []string // numbers of IMEX channels
	Features     []string // "gds", "mofed", "gdrcopy", "nvswitch"
	Requirements []string // conditions that the driver has to meet, see Check
	// RemoveHook says that Docker's hook for --gpus is in the bundle: what it would
	// do is done here.
	RemoveHook bool
	// Warnings are what was asked for and not given, in words.
	Warnings []string
}

// Empty says that there is nothing to give.
func (r Request) Empty() bool {
	return len(r.Devices) == 0 && !r.DriverOnly && len(r.Channels) == 0
}

// The variables that containers ask by.
const (
	visible      = "NVIDIA_VISIBLE_DEVICES"
	capabilities = "NVIDIA_DRIVER_CAPABILITIES"
	imex         = "NVIDIA_IMEX_CHANNELS"
	migConfig    = "NVIDIA_MIG_CONFIG_DEVICES"
	migMonitor   = "NVIDIA_MIG_MONITOR_DEVICES"
)

// maxNames bounds a list: 16 GPUs have 112 MIG devices.
const maxNames = 1024

// Of reads a container's request.
func Of(spec *oci.Spec, s settings.Settings) (Request, error) {
	a := asker{spec: spec, settings: s, env: environment(spec)}
	if err := a.devices(); err != nil {
		return Request{}, err
	}
	if a.Empty() {
		return a.Request, nil
	}
	set, err := capability.Parse(a.env[capabilities])
	if err != nil {
		return Request{}, fmt.Errorf("%s=%s: %w", capabilities, a.env[capabilities], err)
	}
	a.Capabilities = set
	if err := a.mig(); err != nil {
		return Request{}, err
	}
	for _, feature := range []string{"gds", "mofed", "gdrcopy", "nvswitch"} {
		if a.env["NVIDIA_"+strings.ToUpper(feature)] == "enabled" {
			a.Features = append(a.Features, feature)
		}
	}
	a.Requirements = requirements(a.env)
	return a.Request, nil
}

type asker struct {
	Request
	spec     *oci.Spec
	settings settings.Settings
	env      map[string]string
}

// environment is that of the container's process; where a variable is set twice the
// last one holds, as runtimes have it and as Docker's --gpus relies on.
func environment(spec *oci.Spec) map[string]string {
	env := map[string]string{}
	if spec.Process == nil {
		return env
	}
	for _, e := range spec.Process.Env {
		if name, value, ok := strings.Cut(e, "="); ok {
			env[name] = value
		}
	}
	return env
}

func (a *asker) devices() error {
	a.RemoveHook = dockerGPUs(a.spec)
	if names := a.annotated(); len(names) > 0 {
		a.Devices = names
		return a.bounded()
	}
	if a.settings.AcceptVolumeMounts {
		names, channels, err := mounted(a.spec.Mounts)
		if err != nil {
			return err
		}
		if len(names)+len(channels) > 0 {
			a.Devices, a.Channels = names, channels
			return a.bounded()
		}
	}
	if err := a.byEnvironment(); err != nil {
		return err
	}
	return a.bounded()
}

func (a *asker) bounded() error {
	if n := max(len(a.Devices), len(a.Channels)); n > maxNames {
		return fmt.Errorf("%d devices are asked for, more than %d", n, maxNames)
	}
	return nil
}

// annotated returns the CDI names of annotations. Podman's are not read: it copies
// an image's annotations to the container, and an image must not grant itself
// anything (pkg/specgen/generate/container.go); its --device takes CDI names.
func (a *asker) annotated() []string {
	var keys []string
	for key := range a.spec.Annotations {
		if slices.ContainsFunc(a.settings.AnnotationPrefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	if podman(a.spec.Annotations) {
		a.warn("annotation %s is not honoured with Podman, where it can be the image's; use podman run --device", keys[0])
		return nil
	}
	var names []string
	for _, key := range keys {
		names = append(names, words(a.spec.Annotations[key])...)
	}
	return unique(names)
}

// docker says whether the variables are those of docker run --gpus. A hook directory
// (oci-nvidia-hook.json) puts the same hook into every container of Podman and CRI-O.
func (a *asker) docker() bool {
	for key := range a.spec.Annotations {
		if strings.HasPrefix(key, "io.kubernetes.") {
			return false
		}
	}
	return a.RemoveHook && !podman(a.spec.Annotations)
}

// podman says whether Podman may have made the container. It names itself in one
// annotation, and an image that replaces that cannot be rid of the others.
func podman(annotations map[string]string) bool {
	for key, value := range annotations {
		if strings.HasPrefix(key, "io.podman.annotations.") || key == "io.container.manager" && value == "libpod" {
			return true
		}
	}
	return false
}

func (a *asker) byEnvironment() error {
	names := words(a.env[visible])
	if len(names) == 0 || slices.Contains(names, "void") {
		names = nil
	}
	channels := words(a.env[imex])
	if len(names)+len(channels) == 0 {
		return nil
	}
	accepted := a.settings.AcceptEnvvar || a.settings.AcceptNamed && named(names)
	if !accepted && !a.docker() && !privileged(a.spec) {
		return a.refuse(names, channels)
	}
	names, none := without(names, "none")
	if none && len(names) > 0 {
		return fmt.Errorf("%s=%s: \"none\" goes with no other name", visible, a.env[visible])
	}
	a.Devices, a.DriverOnly, a.Channels = unique(names), none, unique(channels)
	return nil
}

// refuse decides about a container that may not ask by environment. "all" and "none"
// are what images of CUDA programs say of themselves, whether they are to have a GPU or
// not: those start, without. A list of GPUs somebody has thought of: without them
// the container would find out later that it has none, and not why.
func (a *asker) refuse(names, channels []string) error {
	turnOn := "set \"accept-nvidia-visible-devices-envvar-when-unprivileged\" in gpu-oci-runtime.json to allow it to every container of this runtime, or request GPUs as resources, by CDI name or by a privileged container"
	if a.settings.AcceptNamed {
		turnOn = "name the GPUs by index or UUID, request them as resources, annotate the pod with cdi.k8s.io/gpus: nvidia.com/gpu=all, or run gpu-toolkit with --accept-nvidia-visible-devices-envvar-when-unprivileged"
	}
	if named(names) {
		return fmt.Errorf("the container asks for GPUs by the environment variable %s=%s, which unprivileged containers may not: %s", visible, a.env[visible], turnOn)
	}
	if len(names) > 0 {
		a.warn("%s=%s of an unprivileged container is not honoured, since its image can have set it; %s", visible, a.env[visible], turnOn)
	}
	if len(channels) > 0 {
		a.warn("%s=%s of an unprivileged container is not honoured; %s", imex, a.env[imex], turnOn)
	}
	return nil
}

// named says whether somebody has thought of what is in a list.
func named(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return name != "all" && name != "none" })
}

// privileged is what NVIDIA's container toolkit takes for it (internal/config/image,
// privileged.go): CAP_SYS_ADMIN in the bounding set, so that a process of a privileged
// container that is not root counts too.
func privileged(spec *oci.Spec) bool {
	return spec.Process != nil && spec.Process.Capabilities != nil && slices.Contains(spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
}

// mig reads the requests to manage MIG. They are for containers that get GPUs.
func (a *asker) mig() error {
	for _, v := range []struct {
		name string
		into *bool
	}{{migConfig, &a.MIGConfig}, {migMonitor, &a.MIGMonitor}} {
		if a.env[v.name] == "" {
			continue
		}
		if !privileged(a.spec) {
			return fmt.Errorf("%s=%s: only privileged containers may; remove the variable or make the container privileged", v.name, a.env[v.name])
		}
		*v.into = true
	}
	return nil
}

func (a *asker) warn(format string, args ...any) {
	a.Warnings = append(a.Warnings, fmt.Sprintf(format, args...))
}

// words are what stands between commas.
func words(value string) []string {
	var list []string
	for word := range strings.SplitSeq(value, ",") {
		if word = strings.TrimSpace(word); word != "" {
			list = append(list, word)
		}
	}
	return list
}

func without(list []string, word string) (rest []string, found bool) {
	rest = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == word })
	return rest, len(rest) < len(list)
}

// unique drops what is there again.
func unique(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool {
		again := seen[s]
		seen[s] = true
		return again
	})
}

// requirements are all NVIDIA_REQUIRE_* conditions, and that of an image from before
// there were such, which says its CUDA version alone.
func requirements(env map[string]string) []string {
	if disabled, err := strconv.ParseBool(env["NVIDIA_DISABLE_REQUIRE"]); err == nil && disabled {
		return nil
	}
	var list []string
	for name, value := range env {
		if strings.HasPrefix(name, "NVIDIA_REQUIRE_") && !strings.HasPrefix(name, "NVIDIA_REQUIRE_JETPACK") && strings.TrimSpace(value) != "" {
			list = append(list, value)
		}
	}
	slices.Sort(list)
	if version := env["CUDA_VERSION"]; version != "" && env["NVIDIA_REQUIRE_CUDA"] == "" {
		if major, minor, ok := majorMinor(version); ok {
			list = append(list, "cuda>="+major+"."+minor)
		}
	}
	return list
}

func majorMinor(version string) (major, minor string, ok bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return "", "", false
	}
	_, err1 := strconv.ParseUint(parts[0], 10, 16)
	_, err2 := strconv.ParseUint(parts[1], 10, 16)
	return parts[0], parts[1], err1 == nil && err2 == nil
}
