package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

const (
	// recordName is the name of the kubelet's record of devices, beside its socket
	// (pkg/kubelet/cm/devicemanager of k8s.io/kubernetes: kubeletDeviceManagerCheckpoint).
	recordName = "kubelet_internal_checkpoint"
	// maxRecord bounds it: 10,000 devices need 1 MiB.
	maxRecord = 16 << 20
	// accountTimeout bounds the question for allocations: the kubelet answers from its memory.
	accountTimeout = 5 * time.Second
)

// RecordBeside returns the path of the kubelet's record of devices.
func RecordBeside(socket string) string { return filepath.Join(filepath.Dir(socket), recordName) }

// Allocation is a device that a container holds.
type Allocation struct {
	Resource string
	ID       string // of the device, as the device plugin named it
	By       string // the pod, for people
	Recorded bool   // only the record has it
}

// podPrefix begins the text of a pod that the PodResources API names.
const podPrefix = "pod "

// Namespace returns the namespace of the pod; "": only the record has it, which names pods by UID.
func (a Allocation) Namespace() string {
	if a.Recorded {
		return ""
	}
	namespace, _, _ := strings.Cut(strings.TrimPrefix(a.By, podPrefix), "/")
	return namespace
}

// claimDriver is the name of gpu-dra-driver, and of NVIDIA's, in claims.
const claimDriver = "gpu.nvidia.com"

// ReadAllocations returns the devices that pods hold, and whether pods have claims for GPUs, by the kubelet's PodResources API and by its record,
// in this order: List makes the kubelet forget pods that have ended. The record names pods by UID, so a
// device of both is returned once. A kubelet without a record has allocated nothing.
func ReadAllocations(ctx context.Context, podResources, recordPath string) (all []Allocation, claims bool, err error) {
	client, conn, err := DialPodResources(podResources)
	if err != nil {
		return nil, false, fmt.Errorf("the kubelet's PodResources API: %w", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, accountTimeout)
	defer cancel()
	response, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, false, fmt.Errorf("the kubelet's PodResources API, List: %w", err)
	}
	type device struct{ resource, id string }
	known := map[device]bool{}
	for _, pod := range response.GetPodResources() {
		for _, c := range pod.GetContainers() {
			claims = claims || hasClaim(c)
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					all = append(all, Allocation{Resource: d.GetResourceName(), ID: id, By: podPrefix + pod.GetNamespace() + "/" + pod.GetName()})
					known[device{d.GetResourceName(), id}] = true
				}
			}
		}
	}
	recorded, err := readRecord(recordPath)
	if err != nil {
		return nil, false, err
	}
	for _, a := range recorded {
		if !known[device{a.Resource, a.ID}] {
			all = append(all, a)
		}
	}
	return all, claims, nil
}

// ClaimedDevices returns the GPUs and MIG devices that a container has by claims: gpu-dra-driver names them to the
// container runtime by their UUIDs. Those of claims with administrative access, which hold nothing, are among them.
func ClaimedDevices(c *podresources.ContainerResources) (all []nodestate.ClaimedDevice) {
	for _, d := range c.GetDynamicResources() {
		for _, r := range d.GetClaimResources() {
			for _, named := range r.GetCdiDevices() {
				_, name, _ := strings.Cut(named.GetName(), "=")
				if id := gpu.UUID(name); r.GetDriverName() == claimDriver && (strings.HasPrefix(name, "GPU-") || id.IsMIG()) {
					all = append(all, nodestate.ClaimedDevice{Claim: d.GetClaimNamespace() + "/" + d.GetClaimName(), GPU: id})
				}
			}
		}
	}
	return all
}

// hasClaim reports whether a container has a claim of gpu-dra-driver.
func hasClaim(c *podresources.ContainerResources) bool {
	return slices.ContainsFunc(c.GetDynamicResources(), func(d *podresources.DynamicResource) bool {
		return slices.ContainsFunc(d.GetClaimResources(), func(r *podresources.ClaimResource) bool { return r.GetDriverName() == claimDriver })
	})
}

// readRecord reads the kubelet's record of the devices that pods hold. It does not verify the checksum,
// which is the kubelet's concern.
func readRecord(path string) ([]Allocation, error) {
	data, err := record.Read(path, maxRecord)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("the kubelet's record of devices: %w", err)
	}
	all, err := parseRecord(data)
	if err != nil {
		return nil, fmt.Errorf("the kubelet's record of devices: %s: %w", path, err)
	}
	return all, nil
}

func parseRecord(data []byte) ([]Allocation, error) {
	var file struct {
		Data *struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[string][]string // by NUMA node
			}
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	if file.Data == nil {
		return nil, errors.New("it has no Data")
	}
	var all []Allocation
	for _, e := range file.Data.PodDeviceEntries {
		for _, ids := range e.DeviceIDs {
			for _, id := range ids {
				all = append(all, Allocation{Resource: e.ResourceName, ID: id, By: fmt.Sprintf("container %s of the pod with UID %s", e.ContainerName, e.PodUID), Recorded: true})
			}
		}
	}
	return all, nil
}
