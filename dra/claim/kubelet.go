package claim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
)

const (
	// maxPodResources bounds the kubelet's response: 1,000 pods and 10,000 devices need 2 MiB.
	maxPodResources = 16 << 20
	// kubeletTimeout bounds the question: the kubelet answers from its memory.
	kubeletTimeout = 5 * time.Second
)

// ReadAllocations asks the kubelet on its PodResources socket which devices pods hold: those of
// device plugins that have the UUID of a GPU or MIG device, and this driver's.
func ReadAllocations(ctx context.Context, socket string) (all []Allocation, err error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodResources)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }()
	response, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", socket, err)
	}
	for _, pod := range response.GetPodResources() {
		for _, container := range pod.GetContainers() {
			all = append(all, containerAllocations(pod.GetNamespace()+"/"+pod.GetName(), container)...)
		}
	}
	return all, nil
}

func containerAllocations(pod string, container *podresources.ContainerResources) (all []Allocation) {
	for _, resource := range container.GetDevices() {
		for _, id := range resource.GetDeviceIds() {
			id, _, _ := strings.Cut(id, "::") // the number of a replica
			if uuid, err := gpu.ParseUUID(id); err == nil {
				all = append(all, Allocation{Pod: pod, Resource: resource.GetResourceName(), UUID: uuid})
			}
		}
	}
	for _, dynamic := range container.GetDynamicResources() {
		for _, d := range dynamic.GetClaimResources() {
			if d.GetDriverName() == inventory.Driver {
				all = append(all, Allocation{
					Pod: pod, Claim: types.NamespacedName{Namespace: dynamic.GetClaimNamespace(), Name: dynamic.GetClaimName()},
					Pool: d.GetPoolName(), Device: d.GetDeviceName(),
				})
			}
		}
	}
	return all
}
