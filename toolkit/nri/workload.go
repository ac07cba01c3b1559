package nri

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/toolkit/ociruntime/inject"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
	"github.com/gpuready/gpuready/toolkit/ociruntime/settings"
)

// Workloads says which containers may ask for GPUs, and how they are answered.
type Workloads struct {
	Namespaces []string // whose; none: nobody's
	// AcceptEnvvar takes NVIDIA_VISIBLE_DEVICES=all for a request, which images of CUDA
	// programs say of themselves. What names GPUs is one in any case.
	AcceptEnvvar bool
}

func (w Workloads) allow(pod *api.PodSandbox) bool {
	return slices.Contains(w.Namespaces, pod.GetNamespace())
}

// asked is what a container of an allowed namespace asks for. That the namespace is
// allowed is its operator's word for what images cannot set, annotations and mounts,
// and for lists that somebody has thought of. NRI does not tell which containers are
// privileged: none counts as that.
func (w Workloads) asked(pod *api.PodSandbox, container *api.Container) (request.Request, error) {
	spec := &oci.Spec{Process: &oci.Process{Env: container.GetEnv()}, Annotations: map[string]string{}}
	maps.Copy(spec.Annotations, pod.GetAnnotations())
	maps.Copy(spec.Annotations, container.GetAnnotations())
	for _, m := range container.GetMounts() {
		spec.Mounts = append(spec.Mounts, oci.Mount{Source: m.GetSource(), Destination: m.GetDestination()})
	}
	s := settings.Default()
	s.AcceptNamed, s.AcceptPodAnnotations, s.AcceptVolumeMounts, s.AcceptEnvvar = true, true, true, w.AcceptEnvvar
	return request.Of(spec, s)
}

// Resolve returns how a container is adjusted that is about to be created in an allowed
// namespace; nil for not at all. What it has already, because the kubelet or another
// plugin had it given, is not given again, and where it has GPUs already the kubelet has
// decided: it gets no others. The error is for its pod's owner.
func (w Workloads) Resolve(table *Table, pod *api.PodSandbox, container *api.Container) (adjust *api.ContainerAdjustment, asked request.Request, err error) {
	if !w.allow(pod) {
		return nil, asked, nil
	}
	defer func() {
		if err != nil {
			err = request.Brief(fmt.Errorf("gpu-toolkit: container %s of pod %s/%s cannot be given what it asks for: %w",
				record.Clean(container.GetName(), 64), record.Clean(pod.GetNamespace(), 64), record.Clean(pod.GetName(), 256), err))
		}
	}()
	if named(container) {
		return nil, asked, nil
	}
	if asked, err = w.asked(pod, container); err != nil {
		return nil, asked, err
	}
	if asked.Empty() {
		if equipped(container) { // it is not in want of what its image says
			asked.Warnings = nil
		}
		return nil, asked, nil
	}
	if table == nil {
		table = Nothing("the toolkit has not looked at this node yet; it is tried again")
	}
	if table.nothing != "" {
		return nil, asked, errors.New(table.nothing)
	}
	edits, warnings, err := inject.Edits(asked, func(...string) ([]cdi.File, error) { return table.files, nil })
	if err != nil {
		return nil, asked, err
	}
	asked.Warnings = append(asked.Warnings, warnings...)
	if equipped(container) && others(container, edits) {
		asked.Warnings = append(asked.Warnings, "it asks for "+record.Clean(strings.Join(asked.Devices, ","), 256)+" and was given other GPUs already, as by its resources; it gets no more")
		return nil, asked, nil
	}
	adjust, err = missing(container, edits)
	return adjust, asked, err
}

// gpus says whether GPUs are among what is asked for.
func gpus(r request.Request) bool {
	return slices.ContainsFunc(r.Devices, func(name string) bool { return !strings.Contains(name, "=") || isGPU(name) })
}

func isGPU(name string) bool {
	kind, _, _ := strings.Cut(name, "=")
	return kind == cdi.KindNVIDIA || kind == cdi.KindGPU || kind == cdi.KindManagement
}

// named says whether the runtime resolves names of GPUs for a container. Runtimes
// before containerd 2.2 do not tell.
func named(container *api.Container) bool {
	return slices.ContainsFunc(container.GetCDIDevices(), func(d *api.CDIDevice) bool { return isGPU(d.GetName()) })
}

// equipped says whether a container has a GPU.
func equipped(container *api.Container) bool {
	return named(container) || slices.ContainsFunc(container.GetLinux().GetDevices(), func(d *api.LinuxDevice) bool { return inject.IsGPU(d.GetPath()) })
}

// control are the device nodes that every container with a GPU is given. They give
// access to none by themselves.
var control = []string{"/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}

// others reports whether edits give a device node, as that of another GPU or MIG device,
// that a container does not have. The GPU of two MIG devices has one node; what tells
// them apart are the nodes of their capabilities.
func others(container *api.Container, edits []specs.ContainerEdits) bool {
	return slices.ContainsFunc(edits, func(e specs.ContainerEdits) bool {
		return slices.ContainsFunc(e.DeviceNodes, func(n *specs.DeviceNode) bool {
			return !slices.Contains(control, n.Path) && !hasDevice(container.GetLinux().GetDevices(), n)
		})
	})
}

func hasDevice(list []*api.LinuxDevice, n *specs.DeviceNode) bool {
	return slices.ContainsFunc(list, func(d *api.LinuxDevice) bool {
		return d.GetPath() == n.Path && d.GetMajor() == n.Major && d.GetMinor() == n.Minor
	})
}

// missing says in NRI's words what of edits a container does not have, once. Two
// plugins that add the same thing are an error to the runtime, and while one toolkit
// replaces another there are two.
func missing(container *api.Container, edits []specs.ContainerEdits) (*api.ContainerAdjustment, error) {
	a := &addition{to: container}
	for _, e := range edits {
		for _, env := range e.Env {
			a.env(env)
		}
		for _, n := range e.DeviceNodes {
			if n.Type == "" {
				return nil, fmt.Errorf("the device node %s is not there; does the toolkit say that it is ready?", n.Path)
			}
			if err := a.device(n); err != nil {
				return nil, err
			}
		}
		for _, m := range e.Mounts {
			a.mount(m)
		}
		for _, h := range e.Hooks {
			if err := a.hook(h); err != nil {
				return nil, err
			}
		}
	}
	if !a.any {
		return nil, nil
	}
	return &a.adjust, nil
}

// addition is what is added to a container.
type addition struct {
	to     *api.Container
	adjust api.ContainerAdjustment
	any    bool
}

func (a *addition) env(env string) {
	key, value, _ := strings.Cut(env, "=")
	if slices.Contains(a.to.GetEnv(), env) || slices.ContainsFunc(a.adjust.GetEnv(), func(kv *api.KeyValue) bool { return kv.GetKey() == key }) {
		return
	}
	a.adjust.AddEnv(key, value)
	a.any = true
}

func (a *addition) device(n *specs.DeviceNode) error {
	if hasDevice(a.to.GetLinux().GetDevices(), n) || hasDevice(a.adjust.GetLinux().GetDevices(), n) {
		return nil
	}
	if err := allowed(n); err != nil {
		return err
	}
	a.adjust.AddDevice(&api.LinuxDevice{Path: n.Path, Type: n.Type, Major: n.Major, Minor: n.Minor})
	a.any = true
	return nil
}

func (a *addition) mount(m *specs.Mount) {
	at := path.Clean(m.ContainerPath)
	if slices.ContainsFunc(a.to.GetMounts(), func(o *api.Mount) bool { return path.Clean(o.GetDestination()) == at && o.GetSource() == m.HostPath }) ||
		slices.ContainsFunc(a.adjust.GetMounts(), func(o *api.Mount) bool { return path.Clean(o.GetDestination()) == at }) {
		return
	}
	a.adjust.AddMount(mount(m))
	a.any = true
}

func (a *addition) hook(h *specs.Hook) error {
	add, err := hook(h)
	if err != nil {
		return err
	}
	if includes(a.to.GetHooks(), add) || includes(a.adjust.GetHooks(), add) {
		return nil
	}
	a.adjust.AddHooks(add)
	a.any = true
	return nil
}

// includes says whether hooks have the one that others are.
func includes(all, one *api.Hooks) bool {
	for _, stage := range [][2][]*api.Hook{
		{all.GetCreateRuntime(), one.GetCreateRuntime()},
		{all.GetCreateContainer(), one.GetCreateContainer()},
		{all.GetStartContainer(), one.GetStartContainer()},
	} {
		for _, h := range stage[1] {
			return slices.ContainsFunc(stage[0], func(o *api.Hook) bool { return o.GetPath() == h.GetPath() && slices.Equal(o.GetArgs(), h.GetArgs()) })
		}
	}
	return true
}
