package compare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// The kubelet responds within milliseconds. A socket that nobody serves any more
// refuses at once, one that is not served yet is retried meanwhile.
const queryTimeout = 10 * time.Second

// maxCheckpoint bounds the kubelet's checkpoint: 10,000 devices need 1 MiB.
const maxCheckpoint = 16 << 20

// checkpointName is the name of the device manager's checkpoint, beside its socket
// (kubelet, pkg/kubelet/cm/devicemanager: kubeletDeviceManagerCheckpoint).
const checkpointName = "kubelet_internal_checkpoint"

// Kubelet locates a kubelet that can be queried without registering anything.
type Kubelet struct {
	PodResources string // path of its socket of the PodResources API
	Plugins      string // path of the folder of device plugins' sockets
}

// Query queries the PodResources API, version 1, once. If the kubelet does not serve
// GetAllocatableResources (before Kubernetes 1.28 its feature gate may be off), Query
// reads its checkpoint instead, which also lists the healthy devices.
func (k Kubelet) Query(ctx context.Context) (Theirs, error) {
	client, conn, err := kubelet.DialPodResources(k.PodResources)
	if errors.Is(err, fs.ErrNotExist) {
		return Theirs{}, fmt.Errorf("the kubelet's PodResources API: %w; is its folder mounted, or is the socket elsewhere (--pod-resources-socket)?", err)
	} else if err != nil {
		return Theirs{}, fmt.Errorf("the kubelet's PodResources API: %w", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	pods, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return Theirs{}, fmt.Errorf("the kubelet's PodResources API, List: %w", err)
	}
	t := Theirs{Allocations: listHoldings(pods)}
	allocatable, err := client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	switch {
	case err == nil:
		t.Devices = listDevices(allocatable)
	case status.Code(err) == codes.Unimplemented || status.Code(err) == codes.Unknown: // the kubelet's own errors have no code
		t.Checkpoint = true
		var readErr error
		if t.Devices, readErr = readCheckpoint(filepath.Join(k.Plugins, checkpointName)); readErr != nil {
			return Theirs{}, fmt.Errorf("the kubelet's PodResources API, GetAllocatableResources: %w; and its checkpoint: %w", err, readErr)
		}
	default:
		return Theirs{}, fmt.Errorf("the kubelet's PodResources API, GetAllocatableResources: %w", err)
	}
	return t, nil
}

func listDevices(response *podresources.AllocatableResourcesResponse) map[string][]Device {
	all := map[string][]Device{}
	for _, d := range response.GetDevices() {
		var numa []int64
		for _, n := range d.GetTopology().GetNodes() {
			numa = append(numa, n.GetID())
		}
		slices.Sort(numa)
		for _, id := range d.GetDeviceIds() {
			all[d.GetResourceName()] = append(all[d.GetResourceName()], Device{ID: id, NUMA: numa})
		}
	}
	return all
}

// listHoldings returns one Holding for each container and resource: the kubelet has an
// entry for each device, or for each NUMA node.
func listHoldings(response *podresources.ListPodResourcesResponse) []Allocation {
	var all []Allocation
	for _, p := range response.GetPodResources() {
		for _, c := range p.GetContainers() {
			first := len(all)
			for _, d := range c.GetDevices() {
				i := slices.IndexFunc(all[first:], func(h Allocation) bool { return h.Resource == d.GetResourceName() })
				if i < 0 {
					i = len(all) - first
					all = append(all, Allocation{Namespace: p.GetNamespace(), Pod: p.GetName(), Container: c.GetName(), Resource: d.GetResourceName()})
				}
				all[first+i].IDs = append(all[first+i].IDs, d.GetDeviceIds()...)
			}
			for i := range all[first:] {
				slices.Sort(all[first+i].IDs)
			}
		}
	}
	return all
}

// readCheckpoint reads the healthy devices of each resource. It does not verify the
// checksum, which is the kubelet's concern. Every device plugin can write to the
// folder, so it does not wait for whatever lies there instead of a file.
func readCheckpoint(path string) (map[string][]Device, error) {
	data, err := record.Read(path, maxCheckpoint)
	if err != nil {
		return nil, err
	}
	all, err := parseCheckpoint(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func parseCheckpoint(data []byte) (map[string][]Device, error) {
	var file struct {
		Data *struct{ RegisteredDevices map[string][]string }
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	if file.Data == nil {
		return nil, errors.New("no checkpoint of a device manager: it has no Data")
	}
	all := map[string][]Device{}
	for name, ids := range file.Data.RegisteredDevices {
		for _, id := range ids {
			all[name] = append(all[name], Device{ID: id})
		}
	}
	return all, nil
}
