package allocate

import (
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	spec "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/mps"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/cdi"
)

// What the NVIDIA container runtime looks for, as the reference gives it.
const (
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	imexChannels   = "NVIDIA_IMEX_CHANNELS"
	// With volume-mounts the devices are the names of what is mounted below this
	// folder: anybody can set a variable, and not everybody can mount.
	mounts    = "/var/run/nvidia-container-devices"
	mountFrom = "/dev/null"
)

// ImexPath is the device node of an IMEX channel.
func ImexPath(channel int) string {
	return "/dev/nvidia-caps-imex-channels/channel" + strconv.Itoa(channel)
}

// answer is one that is being made.
type answer struct {
	config   *config.Config
	host     Host
	resource string
	devices  []plan.Device

	*v1beta1.ContainerAllocateResponse
}

func (a *answer) make() (*v1beta1.ContainerAllocateResponse, error) {
	p := a.config.Flags.Plugin
	strategies := p.Strategies()
	byRuntime := false  // the NVIDIA container runtime does the rest
	byVariable := false // and believes variables, which an image can set
	for _, s := range strategies {
		switch s {
		case config.ListCDI:
			for _, name := range a.names() {
				a.CdiDevices = append(a.CdiDevices, &v1beta1.CDIDevice{Name: name})
			}
		case config.ListAnnotations:
			if err := a.annotate(); err != nil {
				return nil, status.Errorf(codes.Internal, "name the CDI devices of %s in an annotation: %v", a.resource, err)
			}
		case config.ListVariable:
			byRuntime, byVariable = true, true
			a.variables()
		case config.ListMounts:
			byRuntime = true
			a.mounts()
		}
	}
	if given(p.PassDeviceSpecs) {
		if err := a.nodes(); err != nil {
			return nil, err
		}
	}
	for _, extra := range []struct {
		wanted   *bool
		variable string
		nodes    []string
	}{
		{a.config.Flags.GDRCopyEnabled, "NVIDIA_GDRCOPY", a.host.GDRCopy},
		{a.config.Flags.GDSEnabled, "NVIDIA_GDS", a.host.GDS},
		{a.config.Flags.MOFEDEnabled, "NVIDIA_MOFED", a.host.MOFED},
	} {
		if !given(extra.wanted) {
			continue
		}
		if byRuntime {
			a.set(extra.variable, "enabled")
		}
		if !byVariable {
			a.add(extra.nodes)
		}
	}
	if !byRuntime || given(p.PassDeviceSpecs) {
		for _, channel := range a.host.Imex {
			a.add([]string{ImexPath(channel)})
		}
	}
	a.share()
	return a.ContainerAllocateResponse, nil
}

// share lets a CUDA program find the MPS control daemon of its resource, which
// shares memory with it (the reference's internal/plugin/mps.go). A container has
// one daemon: devices that are not shared have none.
//
// The folder of the pipes is the host's /run, so it is read-only for the container: a
// program can connect to a socket and write to a pipe there, and cannot make, change or
// remove a file. The shared memory has a file system of its own with a bound.
func (a *answer) share() {
	strategy, _ := a.config.Sharing.Active()
	if strategy != config.SharingMPS || !slices.ContainsFunc(a.devices, func(d plan.Device) bool { return d.Replicas > 0 }) {
		return
	}
	root, pipe := mps.Root(a.config), mps.PipeDir(mps.Container, a.resource)
	a.set("CUDA_MPS_PIPE_DIRECTORY", pipe)
	a.Mounts = append(a.Mounts,
		&v1beta1.Mount{ContainerPath: pipe, HostPath: mps.PipeDir(root, a.resource), ReadOnly: true},
		&v1beta1.Mount{ContainerPath: mps.Shm, HostPath: mps.ShmDir(root)})
}

// names are the CDI names. They are made of UUIDs whatever the device ID strategy
// is: the toolkit's specification knows no other.
func (a *answer) names() []string {
	var names []string
	for _, d := range a.devices {
		names = append(names, cdi.GPUName(d.UUID()))
	}
	return names
}

// annotate asks for the CDI names as package cdi of the container device
// interface reads it, but for the prefix. The key is one for each allocation, as
// a container may have several, and the same for the same devices.
func (a *answer) annotate() error {
	names := a.names()
	hash := sha256.Sum256([]byte(a.resource + "\n" + strings.Join(names, "\n")))
	annotations, err := spec.UpdateAnnotations(nil, "nvidia-device-plugin", fmt.Sprintf("%x", hash[:16]), names)
	if err != nil {
		return err
	}
	prefix := spec.AnnotationPrefix
	if p := a.config.Flags.Plugin.CDIAnnotationPrefix; p != nil {
		prefix = *p
	}
	a.Annotations = map[string]string{}
	for key, value := range annotations {
		a.Annotations[prefix+strings.TrimPrefix(key, spec.AnnotationPrefix)] = value
	}
	return nil
}

// list names the devices to the NVIDIA container runtime.
func (a *answer) list() []string {
	var list []string
	for _, d := range a.devices {
		if a.config.Flags.Plugin.ByIndex() {
			list = append(list, d.IndexID())
		} else {
			list = append(list, string(d.UUID()))
		}
	}
	return list
}

func (a *answer) variables() {
	a.set(visibleDevices, strings.Join(a.list(), ","))
	var channels []string
	for _, channel := range a.host.Imex {
		channels = append(channels, strconv.Itoa(channel))
	}
	if len(channels) > 0 {
		a.set(imexChannels, strings.Join(channels, ","))
	}
}

// mounts has the last word about the variable, where envvar is a strategy too.
func (a *answer) mounts() {
	a.set(visibleDevices, mounts)
	names := a.list()
	for _, channel := range a.host.Imex {
		names = append(names, path.Join("imex", strconv.Itoa(channel)))
	}
	for _, name := range names {
		a.Mounts = append(a.Mounts, &v1beta1.Mount{HostPath: mountFrom, ContainerPath: path.Join(mounts, name), ReadOnly: true})
	}
}

// nodes gives the device nodes of the devices themselves.
func (a *answer) nodes() error {
	a.add(a.host.Control)
	for _, d := range a.devices {
		nodes, known := a.host.GPUs[d.UUID()]
		if !known {
			return status.Errorf(codes.FailedPrecondition, "the device nodes of %s are not known, and flags.plugin.passDeviceSpecs asks for them; "+
				"see the log of gpu-device-plugin, and /proc/driver/nvidia-caps/mig-minors for a MIG device", d.UUID())
		}
		a.add(nodes)
	}
	return nil
}

// add gives device nodes, each of them once.
func (a *answer) add(nodes []string) {
	for _, p := range nodes {
		if slices.ContainsFunc(a.Devices, func(d *v1beta1.DeviceSpec) bool { return d.GetContainerPath() == p }) {
			continue
		}
		a.Devices = append(a.Devices, &v1beta1.DeviceSpec{ContainerPath: p, HostPath: path.Join("/", a.host.DevRoot, p), Permissions: "rw"})
	}
}

func (a *answer) set(variable, value string) {
	if a.Envs == nil {
		a.Envs = map[string]string{}
	}
	a.Envs[variable] = value
}

func given(b *bool) bool { return b != nil && *b }
