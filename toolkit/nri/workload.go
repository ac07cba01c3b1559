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
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
)

// Workloads is the policy for containers that request GPUs.
type Workloads struct {
	Namespaces []string // the allowed namespaces, none by default
	// AcceptEnvvar accepts NVIDIA_VISIBLE_DEVICES=all as a request. Images of CUDA programs set
	// that value by themselves. A value that names GPUs is always a request.
	AcceptEnvvar bool
}

func (w Workloads) allow(pod *api.PodSandbox) bool {
	return slices.Contains(w.Namespaces, pod.GetNamespace())
}

// request returns the request of a container in an allowed namespace. Whoever allows a
// namespace accepts annotations and mounts of its pods, which images cannot set, and
// explicit lists of GPUs. NRI does not report which containers are privileged, so none is
// treated as privileged.
func (w Workloads) request(pod *api.PodSandbox, container *api.Container) (request.Request, error) {
	spec := &oci.Spec{Process: &oci.Process{Env: container.GetEnv()}, Annotations: map[string]string{}}
	maps.Copy(spec.Annotations, pod.GetAnnotations())
	maps.Copy(spec.Annotations, container.GetAnnotations())
	for _, m := range container.GetMounts() {
		spec.Mounts = append(spec.Mounts, oci.Mount{Source: m.GetSource(), Destination: m.GetDestination()})
	}
	s := request.DefaultSettings()
	s.AcceptNamed, s.AcceptPodAnnotations, s.AcceptVolumeMounts, s.AcceptEnvvar = true, true, true, w.AcceptEnvvar
	return request.Parse(spec, s)
}

// Resolve returns the adjustment of a container that is about to be created in an
// allowed namespace, nil for none. It does not repeat what the container already has
// from the kubelet or another plugin. A container that already has GPUs gets no others,
// as the kubelet has decided. asked is what the container requests, with warnings. Both the
// warnings and the error are for the owner of its pod.
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
	if namesGPUs(container) {
		return nil, asked, nil
	}
	if asked, err = w.request(pod, container); err != nil {
		return nil, asked, err
	}
	if asked.Empty() {
		if equipped(container) { // it has GPUs, so it does not matter that its image's variable was ignored
			asked.Warnings = nil
		}
		return nil, asked, nil
	}
	if table == nil {
		table = EmptyTable("the toolkit has not scanned this node yet; the container will be retried")
	}
	if table.nothing != "" {
		return nil, asked, errors.New(table.nothing)
	}
	edits, warnings, err := asked.Edits(func(...string) ([]cdi.File, error) { return table.files, nil })
	if err != nil {
		return nil, asked, err
	}
	asked.Warnings = append(asked.Warnings, warnings...)
	if equipped(container) && addsDevices(container, edits) {
		asked.Warnings = append(asked.Warnings, "it requests "+record.Clean(strings.Join(asked.Devices, ","), 256)+", but it already has other GPUs, for example by its resources; it gets no more")
		return nil, asked, nil
	}
	adjust, err = missing(container, edits)
	return adjust, asked, err
}

// requestsGPUs reports whether a request includes GPUs: by index, UUID or "all", which have no
// "=", or by the CDI name of a GPU.
func requestsGPUs(r request.Request) bool {
	return slices.ContainsFunc(r.Devices, func(name string) bool { return !strings.Contains(name, "=") || isGPU(name) })
}

func isGPU(name string) bool {
	kind, _, _ := strings.Cut(name, "=")
	return kind == cdi.KindNVIDIA || kind == cdi.KindGPU || kind == cdi.KindManagement
}

// namesGPUs reports whether a container has GPUs as CDI names, which the runtime
// resolves. Runtimes before containerd 2.2 do not report these names.
func namesGPUs(container *api.Container) bool {
	return slices.ContainsFunc(container.GetCDIDevices(), func(d *api.CDIDevice) bool { return isGPU(d.GetName()) })
}

// equipped reports whether a container has a GPU.
func equipped(container *api.Container) bool {
	return namesGPUs(container) || slices.ContainsFunc(container.GetLinux().GetDevices(), func(d *api.LinuxDevice) bool { return request.IsGPU(d.GetPath()) })
}

// control are the device nodes that every container with a GPU has. They give no access
// to a GPU by themselves.
var control = []string{"/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}

// addsDevices reports whether edits add a device node that the container does not have,
// such as that of another GPU or MIG device. Two MIG devices of a GPU share its node and
// differ in the nodes of their capabilities.
func addsDevices(container *api.Container, edits []specs.ContainerEdits) bool {
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

// missing returns the edits that a container does not have yet, in NRI's form and
// without duplicates. A runtime rejects two plugins that add the same thing, and while
// one toolkit replaces another there are two plugins.
func missing(container *api.Container, edits []specs.ContainerEdits) (*api.ContainerAdjustment, error) {
	a := &addition{to: container}
	for _, e := range edits {
		for _, env := range e.Env {
			a.addEnv(env)
		}
		for _, n := range e.DeviceNodes {
			if n.Type == "" { // the scan found no such node on the host
				return nil, fmt.Errorf("the device node %s does not exist; check that the toolkit is ready", n.Path)
			}
			if err := a.addDevice(n); err != nil {
				return nil, err
			}
		}
		for _, m := range e.Mounts {
			a.addMount(m)
		}
		for _, h := range e.Hooks {
			if err := a.addHook(h); err != nil {
				return nil, err
			}
		}
	}
	if !a.any {
		return nil, nil
	}
	return &a.adjust, nil
}

// addition builds the adjustment of a container.
type addition struct {
	to     *api.Container
	adjust api.ContainerAdjustment
	any    bool
}

// addEnv sets a variable unless the container has it with this value. Of several edits with one
// key, the first counts; so it is with mounts.
func (a *addition) addEnv(env string) {
	key, value, _ := strings.Cut(env, "=")
	if slices.Contains(a.to.GetEnv(), env) || slices.ContainsFunc(a.adjust.GetEnv(), func(kv *api.KeyValue) bool { return kv.GetKey() == key }) {
		return
	}
	a.adjust.AddEnv(key, value)
	a.any = true
}

func (a *addition) addDevice(n *specs.DeviceNode) error {
	if hasDevice(a.to.GetLinux().GetDevices(), n) || hasDevice(a.adjust.GetLinux().GetDevices(), n) {
		return nil
	}
	if err := checkPermissions(n); err != nil {
		return err
	}
	a.adjust.AddDevice(&api.LinuxDevice{Path: n.Path, Type: n.Type, Major: n.Major, Minor: n.Minor})
	a.any = true
	return nil
}

func (a *addition) addMount(m *specs.Mount) {
	at := path.Clean(m.ContainerPath)
	if slices.ContainsFunc(a.to.GetMounts(), func(o *api.Mount) bool { return path.Clean(o.GetDestination()) == at && o.GetSource() == m.HostPath }) ||
		slices.ContainsFunc(a.adjust.GetMounts(), func(o *api.Mount) bool { return path.Clean(o.GetDestination()) == at }) {
		return
	}
	a.adjust.AddMount(mount(m))
	a.any = true
}

func (a *addition) addHook(h *specs.Hook) error {
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

// includes reports whether all contains the single hook in one.
func includes(all, one *api.Hooks) bool {
	for _, stage := range [][2][]*api.Hook{
		{all.GetCreateRuntime(), one.GetCreateRuntime()},
		{all.GetCreateContainer(), one.GetCreateContainer()},
		{all.GetStartContainer(), one.GetStartContainer()},
	} {
		for _, h := range stage[1] { // one hook, in one of the stages
			return slices.ContainsFunc(stage[0], func(o *api.Hook) bool { return o.GetPath() == h.GetPath() && slices.Equal(o.GetArgs(), h.GetArgs()) })
		}
	}
	return true
}
