// Package allocate builds the response for a container to which the kubelet has
// allocated devices, and finds out which devices could not be given to one. It is pure except
// for FindDeviceNodes: the caller passes in all that it needs to know.
//
// The device list strategies determine how a container gets its devices. The configuration lists
// one or several, of which Naming.Choose takes those that the node serves:
//
//   - cdi-cri: CDI names, for a container runtime that resolves them itself.
//   - cdi-annotations: the same names, in an annotation of the container.
//   - envvar: NVIDIA_VISIBLE_DEVICES, for the NVIDIA container runtime.
//   - volume-mounts: the same list as mounts, which a container cannot set itself.
//
// Each response matches that of NVIDIA's device plugin (github.com/NVIDIA/k8s-device-plugin,
// internal/plugin/server.go, v0.17 and later), except for what only its own CDI
// specification contains: GDRCopy, GPUDirect Storage, Mellanox OFED and IMEX channels
// are given as device nodes with CDI.
package allocate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
)

// DeviceNodes lists the device nodes that containers may get in addition to, or instead of, CDI
// devices. Paths are those in a container; on the host they are below DevRoot.
type DeviceNodes struct {
	DevRoot string                // host path
	Control []string              // nodes that every container with a GPU needs
	GPUs    map[gpu.UUID][]string // nodes of a GPU or MIG device alone; a device whose nodes are not known has no entry
	GDRCopy []string              // these three are empty unless the configuration enables them
	GDS     []string
	MOFED   []string
	Imex    []int // IMEX channels of the configuration that exist
}

// Resource allocates the devices of one resource. It is never changed and may be used
// concurrently.
type Resource struct {
	config  *config.Config
	nodes   DeviceNodes
	name    string
	devices []plan.Device
	indexOf map[string]int // position of a device in devices, by the kubelet's ID
}

// New returns the Resource for a resource of the current plan.
func New(c *config.Config, h DeviceNodes, r plan.Resource) *Resource {
	a := &Resource{config: c, nodes: h, name: r.Name, devices: r.Devices, indexOf: make(map[string]int, len(r.Devices))}
	for i, d := range r.Devices {
		a.indexOf[d.ID] = i
	}
	return a
}

// Allocate returns what a container gets for the devices. Its errors are gRPC statuses
// with readable sentences: they appear in the pod's events.
func (r *Resource) Allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	chosen, err := r.chooseDevices(ids)
	if err != nil {
		return nil, err
	}
	a := &response{config: r.config, nodes: r.nodes, resource: r.name, devices: chosen, ContainerAllocateResponse: &v1beta1.ContainerAllocateResponse{}}
	return a.build()
}

// chooseDevices returns the devices with the kubelet's IDs, in the order of the GPUs. Of several
// replicas of one device it returns the first only, so that the response does not depend on
// which replicas the kubelet chose.
func (r *Resource) chooseDevices(ids []string) ([]plan.Device, error) {
	if len(ids) == 0 {
		return nil, status.Error(codes.InvalidArgument, "no devices of "+r.name+" were requested")
	}
	var chosen []plan.Device
	for i, id := range ids {
		at, known := r.indexOf[id]
		if !known {
			return nil, status.Errorf(codes.NotFound, "%s has no device %q; it has %s", r.name, id, r.listIDs())
		}
		d := r.devices[at]
		switch {
		case slices.Contains(ids[:i], id):
			return nil, status.Errorf(codes.InvalidArgument, "device %s was requested twice", id)
		case !d.Healthy():
			return nil, status.Errorf(codes.FailedPrecondition, "device %s has been unhealthy since %s: %s",
				id, d.Since.UTC().Format(time.RFC3339), describeFault(d.Fault))
		case d.Replicas > 0 && len(ids) > 1 && r.limitsToOne():
			return nil, status.Errorf(codes.InvalidArgument, "a container may have one %s and requested %d: it is a part of a shared GPU, and more parts do not give more of the GPU; "+
				"request 1, or set failRequestsGreaterThanOne: false in the device plugin's sharing", r.name, len(ids))
		}
		if !slices.ContainsFunc(chosen, func(other plan.Device) bool { return other.UUID() == d.UUID() }) {
			chosen = append(chosen, d)
		}
	}
	if r.mixesShared(chosen) {
		return nil, status.Errorf(codes.InvalidArgument, "a container cannot have a whole GPU and a part of a GPU that is shared by MPS: its programs have one MPS daemon for all of them; "+
			"request 1 %s, or give what is shared another name (rename) in the device plugin's sharing.mps", r.name)
	}
	slices.SortFunc(chosen, func(a, b plan.Device) int { return cmp.Compare(r.indexOf[a.ID], r.indexOf[b.ID]) })
	return chosen, nil
}

// heldByClaim is gpu-dra-driver's reason of a device that a claim holds. Its message names a claim, which may be another tenant's.
const heldByClaim = "HeldByClaim"

// describeFault returns what the author of any pod may know of a fault.
func describeFault(f gpu.Fault) string {
	if f.Reason == heldByClaim {
		return string(f.Reason) + "; next: let the pod be created again"
	}
	return f.String()
}

// mixesShared reports whether the devices include both devices shared by MPS and
// others.
func (r *Resource) mixesShared(devices []plan.Device) bool {
	strategy, _ := r.config.Sharing.Active()
	part := func(d plan.Device) bool { return d.Replicas > 0 }
	whole := func(d plan.Device) bool { return d.Replicas == 0 }
	return strategy == config.SharingMPS && slices.ContainsFunc(devices, part) && slices.ContainsFunc(devices, whole)
}

// limitsToOne reports whether a container may have only one shared device.
func (r *Resource) limitsToOne() bool {
	_, shared := r.config.Sharing.Active()
	return shared.FailRequestsGreaterThanOne != nil && *shared.FailRequestsGreaterThanOne
}

// listIDs lists the IDs of the devices for an error, each shared device once.
func (r *Resource) listIDs() string {
	const most = 16
	var ids []string
	for _, d := range r.devices {
		switch {
		case d.Replica > 0:
			continue
		case len(ids) == most:
			return strings.Join(append(ids, "and more"), ", ")
		}
		ids = append(ids, d.ID)
	}
	if len(ids) == 0 {
		return "none"
	}
	return strings.Join(ids, ", ")
}
