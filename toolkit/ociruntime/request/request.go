// Package request determines which GPUs a container requests, and whether it may (Parse).
// Then it resolves the names in the CDI specifications of the node, filters what they add
// by the container's driver capabilities, and edits the container's configuration
// (Request.Fulfill, Request.Edits).
//
// A container requests GPUs by annotations (CDI names), mounts of /dev/null (a device
// plugin's) or environment variables, in this order of precedence. An image can set its
// own environment, so that is trusted least.
package request

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Request is an accepted request.
type Request struct {
	// Devices are the requested names of GPUs: "all", an index "0", a GPU and its MIG
	// device "0:1", a UUID, or a CDI name "nvidia.com/gpu=0" of one of kinds.
	Devices []string
	// OneEach forbids names that stand for several GPUs.
	OneEach bool
	// DriverOnly requests the driver's files without a device.
	DriverOnly   bool
	Capabilities Capabilities
	MIGConfig    bool     // the container may create and remove all MIG devices
	MIGMonitor   bool     // the container may monitor all MIG devices
	Channels     []string // numbers of IMEX channels
	Features     []string // "gds", "mofed", "gdrcopy", "nvswitch"
	Requirements []string // conditions that the driver has to meet, see check
	// RemoveHook reports whether the bundle has Docker's hook for --gpus, whose work is
	// done here.
	RemoveHook bool
	// Warnings describe the requests that are not honoured.
	Warnings []string
}

// Empty reports whether nothing is requested.
func (r Request) Empty() bool {
	return len(r.Devices) == 0 && !r.DriverOnly && len(r.Channels) == 0
}

// The environment variables of requests.
const (
	visible      = "NVIDIA_VISIBLE_DEVICES"
	capabilities = "NVIDIA_DRIVER_CAPABILITIES"
	imex         = "NVIDIA_IMEX_CHANNELS"
	migConfig    = "NVIDIA_MIG_CONFIG_DEVICES"
	migMonitor   = "NVIDIA_MIG_MONITOR_DEVICES"

	nvswitch = "nvswitch"
)

// maxNames limits the length of a list: 16 GPUs have 112 MIG devices.
const maxNames = 1024

// Parse returns a container's request. It only names devices of kinds. Errors and warnings
// have a bounded length, whatever the container requests.
func Parse(spec *oci.Spec, s Settings) (Request, error) {
	r, err := of(spec, s)
	return r, Brief(err)
}

func of(spec *oci.Spec, s Settings) (Request, error) {
	a := reader{spec: spec, settings: s, env: environment(spec)}
	if err := a.readDevices(); err != nil {
		return Request{}, err
	}
	if a.Empty() {
		return a.Request, nil
	}
	set, err := parseCapabilities(a.env[capabilities])
	if err != nil {
		return Request{}, fmt.Errorf("%s: %w", assignment(capabilities, a.env[capabilities]), err)
	}
	a.Capabilities = set
	if err := a.readMIG(); err != nil {
		return Request{}, err
	}
	a.readFeatures()
	a.Requirements = requirements(a.env)
	return a.Request, nil
}

// reader reads a container's request.
type reader struct {
	Request
	spec     *oci.Spec
	settings Settings
	env      map[string]string
}

// environment returns the environment of the container's process. If a variable is set
// twice the last one applies, as in runtimes; Docker's --gpus relies on that.
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

func (a *reader) readDevices() error {
	a.RemoveHook = dockerGPUs(a.spec)
	if names := a.annotated(); len(names) > 0 {
		a.Devices = names
		return a.checkCount()
	}
	if a.settings.AcceptVolumeMounts {
		names, channels, err := mounted(a.spec.Mounts)
		if err != nil {
			return err
		}
		if err := errors.Join(checkNames(names), checkChannels(channels)); err != nil {
			return fmt.Errorf("mount below %s: %w", devicesDir, err)
		}
		if len(names)+len(channels) > 0 {
			a.Devices, a.Channels = names, channels
			return a.checkCount()
		}
	}
	if err := a.readEnvironment(); err != nil {
		return err
	}
	return a.checkCount()
}

func (a *reader) checkCount() error {
	if n := max(len(a.Devices), len(a.Channels)); n > maxNames {
		return fmt.Errorf("%d devices are requested, more than %d", n, maxNames)
	}
	return nil
}

// docker reports whether docker run --gpus set the variables. A hook directory
// (oci-nvidia-hook.json) adds the same hook to every container of Podman and CRI-O.
func (a *reader) docker() bool {
	for key := range a.spec.Annotations {
		if strings.HasPrefix(key, "io.kubernetes.") {
			return false
		}
	}
	return a.RemoveHook && !podman(a.spec.Annotations)
}

func (a *reader) readEnvironment() error {
	names := words(a.env[visible])
	for i := range names {
		names[i] = normalize(names[i])
	}
	if slices.Contains(names, void) {
		names = nil
	}
	channels := words(a.env[imex])
	for i := range channels {
		channels[i] = normalize(channels[i])
	}
	if len(names)+len(channels) == 0 {
		return nil
	}
	whole := a.environmentTrusted()
	each := a.settings.AcceptNamed && named(names) && !slices.Contains(channels, cdi.All)
	if !whole && !each {
		return a.refuse(names, channels)
	}
	names, none := without(names, none)
	if none && len(names) > 0 {
		return fmt.Errorf("%s: \"none\" cannot be combined with other names", assignment(visible, a.env[visible]))
	}
	if err := checkNames(names); err != nil {
		return fmt.Errorf("%s: %w", visible, err)
	}
	if err := checkChannels(channels); err != nil {
		return fmt.Errorf("%s: %w", imex, err)
	}
	a.Devices, a.DriverOnly, a.Channels = unique(names), none, unique(channels)
	a.OneEach = !whole
	return nil
}

// environmentTrusted reports whether the container may request anything by environment.
func (a *reader) environmentTrusted() bool {
	return a.settings.AcceptEnvvar || a.docker() || privileged(a.spec)
}

// refuse handles a container that may not request GPUs by environment. Images of CUDA
// programs set "all" or "none", in any spelling, whether they need a GPU or not: such
// containers start without. A person wrote any other list, so it is an error: otherwise the
// container would miss its GPUs later without knowing why.
func (a *reader) refuse(names, channels []string) error {
	turnOn := "set \"accept-nvidia-visible-devices-envvar-when-unprivileged\" in gpu-oci-runtime.json to allow it to every container of this runtime, or request GPUs as resources, by CDI name or by a privileged container"
	if a.settings.AcceptNamed {
		turnOn = "name the GPUs by index or UUID, request them as resources, annotate the pod with cdi.k8s.io/gpus: nvidia.com/gpu=all, or run gpu-toolkit with --accept-nvidia-visible-devices-envvar-when-unprivileged"
	}
	if slices.ContainsFunc(names, func(name string) bool { return !unnamed(name) }) {
		return fmt.Errorf("the container requests GPUs by the environment variable %s, which unprivileged containers may not: %s", assignment(visible, a.env[visible]), turnOn)
	}
	if len(names) > 0 {
		a.warn("%s of an unprivileged container is not honoured, since its image can have set it; %s", assignment(visible, a.env[visible]), turnOn)
	}
	if len(channels) > 0 {
		a.warn("%s of an unprivileged container is not honoured; %s", assignment(imex, a.env[imex]), turnOn)
	}
	return nil
}

// privileged reports whether a container is privileged by the definition of NVIDIA's
// container toolkit (internal/config/image, privileged.go): CAP_SYS_ADMIN is in the bounding
// set. So a process of a privileged container that is not root counts too. In a user
// namespace of its own the capability does not extend to the node's devices, and anybody
// may have it there.
func privileged(spec *oci.Spec) bool {
	if spec.Process == nil || spec.Process.Capabilities == nil || !slices.Contains(spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN") {
		return false
	}
	return spec.Linux == nil || !slices.ContainsFunc(spec.Linux.Namespaces, func(n oci.LinuxNamespace) bool { return n.Type == oci.UserNamespace })
}

// readMIG reads the requests to manage MIG. They only apply to containers that get GPUs.
func (a *reader) readMIG() error {
	for _, v := range []struct {
		name string
		into *bool
	}{{migConfig, &a.MIGConfig}, {migMonitor, &a.MIGMonitor}} {
		if a.env[v.name] == "" {
			continue
		}
		if !privileged(a.spec) {
			return fmt.Errorf("%s: only privileged containers may; remove the variable or make the container privileged", assignment(v.name, a.env[v.name]))
		}
		*v.into = true
	}
	return nil
}

// readFeatures reads the requests for peripheral devices. An image can make them, so they
// need the same trust as a request for GPUs by environment. An NVSwitch connects the GPUs
// of all containers, and a container that may open it can disconnect them.
func (a *reader) readFeatures() {
	for _, feature := range []string{"gds", "mofed", "gdrcopy", nvswitch} {
		variable := "NVIDIA_" + strings.ToUpper(feature)
		switch {
		case a.env[variable] != "enabled":
		case feature == nvswitch && !privileged(a.spec):
			a.warn("%s=enabled is not honoured: only privileged containers may manage NVSwitches", variable)
		case !a.environmentTrusted():
			a.warn("%s=enabled of an unprivileged container is not honoured, since its image can have set it; device plugins give the device nodes", variable)
		default:
			a.Features = append(a.Features, feature)
		}
	}
}

func (a *reader) warn(format string, args ...any) {
	a.Warnings = append(a.Warnings, record.Clean(fmt.Sprintf(format, args...), maxMessage))
}

// words returns the non-empty items of a comma-separated list.
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

// unique removes duplicates.
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

// requirements returns all NVIDIA_REQUIRE_* conditions. For an older image, which only
// names its CUDA version, it returns the condition for that.
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
