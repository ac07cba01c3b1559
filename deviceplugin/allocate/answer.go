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

// Names that the NVIDIA container runtime uses, as in the reference.
const (
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	imexChannels   = "NVIDIA_IMEX_CHANNELS"
	// With volume-mounts the devices are the names of mounts below this
	// folder: any user can set a variable, but not every user can mount.
	mounts    = "/var/run/nvidia-container-devices"
	mountFrom = "/dev/null"
)

// ImexPath returns the device node of an IMEX channel.
func ImexPath(channel int) string {
	return "/dev/nvidia-caps-imex-channels/channel" + strconv.Itoa(channel)
}

// response builds one ContainerAllocateResponse.
type response struct {
	config   *config.Config
	host     Host
	resource string
	devices  []plan.Device

	*v1beta1.ContainerAllocateResponse
}

func (a *response) build() (*v1beta1.ContainerAllocateResponse, error) {
	p := a.config.Flags.Plugin
	strategies := p.Strategies()
	byRuntime := false  // the NVIDIA container runtime adds the devices
	byVariable := false // and trusts variables, which an image can set
	for _, s := range strategies {
		switch s {
		case config.ListCDI:
			for _, name := range a.cdiNames() {
				a.CdiDevices = append(a.CdiDevices, &v1beta1.CDIDevice{Name: name})
			}
		case config.ListAnnotations:
			if err := a.addAnnotations(); err != nil {
				return nil, status.Errorf(codes.Internal, "name the CDI devices of %s in an annotation: %v", a.resource, err)
			}
		case config.ListVariable:
			byRuntime, byVariable = true, true
			a.setVariables()
		case config.ListMounts:
			byRuntime = true
			a.addMounts()
		}
	}
	if isTrue(p.PassDeviceSpecs) {
		if err := a.addDeviceSpecs(); err != nil {
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
		if !isTrue(extra.wanted) {
			continue
		}
		if byRuntime {
			a.setEnv(extra.variable, "enabled")
		}
		if !byVariable {
			a.addNodes(extra.nodes)
		}
	}
	if !byRuntime || isTrue(p.PassDeviceSpecs) {
		for _, channel := range a.host.Imex {
			a.addNodes([]string{ImexPath(channel)})
		}
	}
	a.addMPS()
	return a.ContainerAllocateResponse, nil
}

// addMPS lets a CUDA program find the MPS control daemon of its resource and share
// memory with it (the reference's internal/plugin/mps.go). A container has one daemon;
// unshared devices have none.
//
// The folder of the pipes is in the host's /run, so it is read-only for the container:
// a program can connect to a socket and write to a pipe there, but cannot create,
// change or remove a file. The shared memory is a separate, bounded file system.
func (a *response) addMPS() {
	strategy, _ := a.config.Sharing.Active()
	if strategy != config.SharingMPS || !slices.ContainsFunc(a.devices, func(d plan.Device) bool { return d.Replicas > 0 }) {
		return
	}
	root, pipe := mps.Root(a.config), mps.PipeDir(mps.Container, a.resource)
	a.setEnv("CUDA_MPS_PIPE_DIRECTORY", pipe)
	a.Mounts = append(a.Mounts,
		&v1beta1.Mount{ContainerPath: pipe, HostPath: mps.PipeDir(root, a.resource), ReadOnly: true},
		&v1beta1.Mount{ContainerPath: mps.Shm, HostPath: mps.ShmDir(root)})
}

// cdiNames returns the CDI names. They contain UUIDs whatever the device ID strategy
// is: the toolkit's specification has no others.
func (a *response) cdiNames() []string {
	var names []string
	for _, d := range a.devices {
		names = append(names, cdi.GPUName(d.UUID()))
	}
	return names
}

// addAnnotations requests the CDI names in the form that package cdi of the container
// device interface parses, except for the prefix. The key is unique for each
// allocation, since a container may have several, and the same for the same devices.
func (a *response) addAnnotations() error {
	names := a.cdiNames()
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

// visibleIDs returns the devices' IDs for the NVIDIA container runtime.
func (a *response) visibleIDs() []string {
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

func (a *response) setVariables() {
	a.setEnv(visibleDevices, strings.Join(a.visibleIDs(), ","))
	var channels []string
	for _, channel := range a.host.Imex {
		channels = append(channels, strconv.Itoa(channel))
	}
	if len(channels) > 0 {
		a.setEnv(imexChannels, strings.Join(channels, ","))
	}
}

// addMounts must run after setVariables, whose variable it overrides.
func (a *response) addMounts() {
	a.setEnv(visibleDevices, mounts)
	names := a.visibleIDs()
	for _, channel := range a.host.Imex {
		names = append(names, path.Join("imex", strconv.Itoa(channel)))
	}
	for _, name := range names {
		a.Mounts = append(a.Mounts, &v1beta1.Mount{HostPath: mountFrom, ContainerPath: path.Join(mounts, name), ReadOnly: true})
	}
}

// addDeviceSpecs adds the device nodes of the devices themselves.
func (a *response) addDeviceSpecs() error {
	a.addNodes(a.host.Control)
	for _, d := range a.devices {
		nodes, known := a.host.GPUs[d.UUID()]
		if !known {
			return status.Errorf(codes.FailedPrecondition, "the device nodes of %s are not known, but flags.plugin.passDeviceSpecs needs them; "+
				"see the log of gpu-device-plugin, and /proc/driver/nvidia-caps/mig-minors for a MIG device", d.UUID())
		}
		a.addNodes(nodes)
	}
	return nil
}

// addNodes adds device nodes, each once.
func (a *response) addNodes(nodes []string) {
	for _, p := range nodes {
		if slices.ContainsFunc(a.Devices, func(d *v1beta1.DeviceSpec) bool { return d.GetContainerPath() == p }) {
			continue
		}
		a.Devices = append(a.Devices, &v1beta1.DeviceSpec{ContainerPath: p, HostPath: path.Join("/", a.host.DevRoot, p), Permissions: "rw"})
	}
}

func (a *response) setEnv(variable, value string) {
	if a.Envs == nil {
		a.Envs = map[string]string{}
	}
	a.Envs[variable] = value
}

func isTrue(b *bool) bool { return b != nil && *b }
