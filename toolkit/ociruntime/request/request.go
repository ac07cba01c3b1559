// Package request works out which GPUs a container asks for, and whether it may.
// It knows nothing of what there is: that is for package inject.
//
// A container asks, in this order, by annotations (CDI names), by mounts of /dev/null
// (a device plugin's), by environment variables. What an image can set for itself is
// the environment, and that is why it is believed least.
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
	"github.com/gpuready/gpuready/toolkit/capability"
	"github.com/gpuready/gpuready/toolkit/ociruntime/settings"
)

// Request is what a container is to be given.
type Request struct {
	// Devices are names of GPUs as they were asked for: "all", an index "0", a GPU and
	// its MIG device "0:1", a UUID, or a CDI name "nvidia.com/gpu=0" of one of Kinds.
	Devices []string
	// OneEach says that none of the names may stand for several GPUs.
	OneEach bool
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

	nvswitch = "nvswitch"
)

// maxNames bounds a list: 16 GPUs have 112 MIG devices.
const maxNames = 1024

// Of reads a container's request. What it returns names devices of Kinds alone. Errors
// and warnings have a bounded length, whatever the container says.
func Of(spec *oci.Spec, s settings.Settings) (Request, error) {
	r, err := of(spec, s)
	return r, Brief(err)
}

func of(spec *oci.Spec, s settings.Settings) (Request, error) {
	a := asker{spec: spec, settings: s, env: environment(spec)}
	if err := a.devices(); err != nil {
		return Request{}, err
	}
	if a.Empty() {
		return a.Request, nil
	}
	set, err := capability.Parse(a.env[capabilities])
	if err != nil {
		return Request{}, fmt.Errorf("%s: %w", said(capabilities, a.env[capabilities]), err)
	}
	a.Capabilities = set
	if err := a.mig(); err != nil {
		return Request{}, err
	}
	a.features()
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
		if err := errors.Join(checkNames(names), checkChannels(channels)); err != nil {
			return fmt.Errorf("mount below %s: %w", devicesDir, err)
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

func (a *asker) byEnvironment() error {
	names := words(a.env[visible])
	for i := range names {
		names[i] = spell(names[i])
	}
	if slices.Contains(names, void) {
		names = nil
	}
	channels := words(a.env[imex])
	for i := range channels {
		channels[i] = spell(channels[i])
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
		return fmt.Errorf("%s: \"none\" goes with no other name", said(visible, a.env[visible]))
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

// environmentTrusted reports whether the container may ask for anything by environment.
func (a *asker) environmentTrusted() bool {
	return a.settings.AcceptEnvvar || a.docker() || privileged(a.spec)
}

// refuse decides about a container that may not ask by environment. "all" and "none",
// however they are spelled, are what images of CUDA programs say of themselves, whether
// they are to have a GPU or not: those start, without. Another list somebody has thought
// of: without its GPUs the container would find out later that it has none, and not why.
func (a *asker) refuse(names, channels []string) error {
	turnOn := "set \"accept-nvidia-visible-devices-envvar-when-unprivileged\" in gpu-oci-runtime.json to allow it to every container of this runtime, or request GPUs as resources, by CDI name or by a privileged container"
	if a.settings.AcceptNamed {
		turnOn = "name the GPUs by index or UUID, request them as resources, annotate the pod with cdi.k8s.io/gpus: nvidia.com/gpu=all, or run gpu-toolkit with --accept-nvidia-visible-devices-envvar-when-unprivileged"
	}
	if slices.ContainsFunc(names, func(name string) bool { return !unnamed(name) }) {
		return fmt.Errorf("the container asks for GPUs by the environment variable %s, which unprivileged containers may not: %s", said(visible, a.env[visible]), turnOn)
	}
	if len(names) > 0 {
		a.warn("%s of an unprivileged container is not honoured, since its image can have set it; %s", said(visible, a.env[visible]), turnOn)
	}
	if len(channels) > 0 {
		a.warn("%s of an unprivileged container is not honoured; %s", said(imex, a.env[imex]), turnOn)
	}
	return nil
}

// privileged reports what NVIDIA's container toolkit takes for it (internal/config/image,
// privileged.go): CAP_SYS_ADMIN in the bounding set, so that a process of a privileged
// container that is not root counts too. In a user namespace of the container's own the
// capability is none over the node's devices, and anybody may have it there.
func privileged(spec *oci.Spec) bool {
	if spec.Process == nil || spec.Process.Capabilities == nil || !slices.Contains(spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN") {
		return false
	}
	return spec.Linux == nil || !slices.ContainsFunc(spec.Linux.Namespaces, func(n oci.LinuxNamespace) bool { return n.Type == oci.UserNamespace })
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
			return fmt.Errorf("%s: only privileged containers may; remove the variable or make the container privileged", said(v.name, a.env[v.name]))
		}
		*v.into = true
	}
	return nil
}

// features reads the requests for what GPUs work with. An image can make them, so that
// they need the same trust as a request for GPUs by environment. An NVSwitch connects the
// GPUs of all containers, and who may open it can disconnect them.
func (a *asker) features() {
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

func (a *asker) warn(format string, args ...any) {
	a.Warnings = append(a.Warnings, record.Clean(fmt.Sprintf(format, args...), maxMessage))
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
