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

// Names that the NVIDIA container runtime uses, as in NVIDIA's device plugin.
const (
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	imexChannels   = "NVIDIA_IMEX_CHANNELS"
	// With volume-mounts the devices are the names of mounts below this
	// folder: any user can set a variable, but not every user can mount.
	mountsFolder = "/var/run/nvidia-container-devices"
	mountSource  = "/dev/null"
)

// ImexPath returns the device node of an IMEX channel.
func ImexPath(channel int) string {
	return "/dev/nvidia-caps-imex-channels/channel" + strconv.Itoa(channel)
}

// response builds one ContainerAllocateResponse.
type response struct {
	config   *config.Config
	nodes    DeviceNodes
	resource string
	devices  []plan.Device

	*v1beta1.ContainerAllocateResponse
}

// build returns the response for the device list strategies of the configuration.
func (r *response) build() (*v1beta1.ContainerAllocateResponse, error) {
	p := r.config.Flags.Plugin
	strategies := p.Strategies()
	byRuntime := false  // the NVIDIA container runtime adds the devices
	byVariable := false // it does so by variables, which an image can set too
	// In this order, since mounts override a variable.
	for _, s := range []string{config.ListCDI, config.ListAnnotations, config.ListVariable, config.ListMounts} {
		if !slices.Contains(strategies, s) {
			continue
		}
		switch s {
		case config.ListCDI:
			for _, name := range r.cdiNames() {
				r.CdiDevices = append(r.CdiDevices, &v1beta1.CDIDevice{Name: name})
			}
		case config.ListAnnotations:
			if err := r.addAnnotations(); err != nil {
				return nil, status.Errorf(codes.Internal, "name the CDI devices of %s in an annotation: %v", r.resource, err)
			}
		case config.ListVariable:
			byRuntime, byVariable = true, true
			r.setVariables()
		case config.ListMounts:
			byRuntime = true
			r.addMounts()
		}
	}
	if isTrue(p.PassDeviceSpecs) {
		if err := r.addDeviceSpecs(); err != nil {
			return nil, err
		}
	}
	for _, optional := range []struct {
		wanted   *bool
		variable string
		nodes    []string
	}{
		{r.config.Flags.GDRCopyEnabled, "NVIDIA_GDRCOPY", r.nodes.GDRCopy},
		{r.config.Flags.GDSEnabled, "NVIDIA_GDS", r.nodes.GDS},
		{r.config.Flags.MOFEDEnabled, "NVIDIA_MOFED", r.nodes.MOFED},
	} {
		if !isTrue(optional.wanted) {
			continue
		}
		if byRuntime {
			r.setEnv(optional.variable, "enabled")
		}
		if !byVariable {
			r.addNodes(optional.nodes)
		}
	}
	if !byRuntime || isTrue(p.PassDeviceSpecs) {
		for _, channel := range r.nodes.Imex {
			r.addNodes([]string{ImexPath(channel)})
		}
	}
	r.addMPS()
	return r.ContainerAllocateResponse, nil
}

// addMPS lets a CUDA program find the MPS control daemon of its resource and share
// memory with it (NVIDIA's internal/plugin/mps.go). A container has one daemon;
// unshared devices have none.
//
// The folder of the pipes is in the host's /run, so it is read-only for the container:
// a program can connect to a socket and write to a pipe there, but cannot create,
// change or remove a file. The shared memory is a separate, bounded file system.
func (r *response) addMPS() {
	strategy, _ := r.config.Sharing.Active()
	if strategy != config.SharingMPS || !slices.ContainsFunc(r.devices, func(d plan.Device) bool { return d.Replicas > 0 }) {
		return
	}
	root, pipe := mps.Root(r.config), mps.PipeDir(mps.Container, r.resource)
	r.setEnv("CUDA_MPS_PIPE_DIRECTORY", pipe)
	r.Mounts = append(r.Mounts,
		&v1beta1.Mount{ContainerPath: pipe, HostPath: mps.PipeDir(root, r.resource), ReadOnly: true},
		&v1beta1.Mount{ContainerPath: mps.Shm, HostPath: mps.ShmDir(root)})
}

// cdiNames returns the CDI names of the devices. They contain UUIDs whatever the device ID
// strategy is: the toolkit's specification has no other names.
func (r *response) cdiNames() []string {
	var names []string
	for _, d := range r.devices {
		names = append(names, cdi.GPUName(d.UUID()))
	}
	return names
}

// addAnnotations requests the CDI names in the form that package cdi of the container
// device interface parses, except for the prefix. The key is unique for each
// allocation, since a container may have several, and the same for the same devices.
func (r *response) addAnnotations() error {
	names := r.cdiNames()
	hash := sha256.Sum256([]byte(r.resource + "\n" + strings.Join(names, "\n")))
	annotations, err := spec.UpdateAnnotations(nil, "nvidia-device-plugin", fmt.Sprintf("%x", hash[:16]), names)
	if err != nil {
		return err
	}
	prefix := spec.AnnotationPrefix
	if p := r.config.Flags.Plugin.CDIAnnotationPrefix; p != nil {
		prefix = *p
	}
	r.Annotations = map[string]string{}
	for key, value := range annotations {
		r.Annotations[prefix+strings.TrimPrefix(key, spec.AnnotationPrefix)] = value
	}
	return nil
}

// visibleIDs returns the devices' IDs for the NVIDIA container runtime.
func (r *response) visibleIDs() []string {
	var list []string
	for _, d := range r.devices {
		if r.config.Flags.Plugin.ByIndex() {
			list = append(list, d.IndexID())
		} else {
			list = append(list, string(d.UUID()))
		}
	}
	return list
}

// setVariables sets the variables that the NVIDIA container runtime reads.
func (r *response) setVariables() {
	r.setEnv(visibleDevices, strings.Join(r.visibleIDs(), ","))
	var channels []string
	for _, channel := range r.nodes.Imex {
		channels = append(channels, strconv.Itoa(channel))
	}
	if len(channels) > 0 {
		r.setEnv(imexChannels, strings.Join(channels, ","))
	}
}

// addMounts requests the devices from the NVIDIA container runtime by mounts. It must run after
// setVariables, since it overrides a variable of it.
func (r *response) addMounts() {
	r.setEnv(visibleDevices, mountsFolder)
	names := r.visibleIDs()
	for _, channel := range r.nodes.Imex {
		names = append(names, path.Join("imex", strconv.Itoa(channel)))
	}
	for _, name := range names {
		r.Mounts = append(r.Mounts, &v1beta1.Mount{HostPath: mountSource, ContainerPath: path.Join(mountsFolder, name), ReadOnly: true})
	}
}

// addDeviceSpecs adds the device nodes of the devices and the driver's control nodes.
func (r *response) addDeviceSpecs() error {
	r.addNodes(r.nodes.Control)
	for _, d := range r.devices {
		nodes, known := r.nodes.GPUs[d.UUID()]
		if !known {
			return status.Errorf(codes.FailedPrecondition, "the device nodes of %s are not known, but flags.plugin.passDeviceSpecs needs them; "+
				"see the log of gpu-device-plugin, and /proc/driver/nvidia-caps/mig-minors for a MIG device", d.UUID())
		}
		r.addNodes(nodes)
	}
	return nil
}

// addNodes adds device nodes, each once.
func (r *response) addNodes(nodes []string) {
	for _, p := range nodes {
		if slices.ContainsFunc(r.Devices, func(d *v1beta1.DeviceSpec) bool { return d.GetContainerPath() == p }) {
			continue
		}
		r.Devices = append(r.Devices, &v1beta1.DeviceSpec{ContainerPath: p, HostPath: path.Join("/", r.nodes.DevRoot, p), Permissions: "rw"})
	}
}

func (r *response) setEnv(variable, value string) {
	if r.Envs == nil {
		r.Envs = map[string]string{}
	}
	r.Envs[variable] = value
}

func isTrue(b *bool) bool { return b != nil && *b }
