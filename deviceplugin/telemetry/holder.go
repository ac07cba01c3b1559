package telemetry

import (
	"context"
	"slices"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// holder is a container that a device was allocated to.
type holder struct{ namespace, pod, container string }

// readHolders asks the kubelet which containers hold the devices of a plan, or any device by a claim. A container
// that holds several replicas or shares of a device is listed once. admin returns the devices of claims with
// administrative access, which hold nothing; nil: there is none.
func readHolders(ctx context.Context, socket string, p plan.Plan, admin func() []nodestate.ClaimedDevice) (map[gpu.UUID][]holder, error) {
	client, conn, err := kubelet.DialPodResources(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	pods, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	var watched []nodestate.ClaimedDevice
	if admin != nil {
		watched = admin() // after the kubelet's account, which a claim enters later
	}
	type key struct{ resource, id string }
	devices := map[key]gpu.UUID{}
	for _, r := range p.Resources {
		for _, d := range r.Devices {
			devices[key{r.Name, d.ID}] = d.UUID()
		}
	}
	all := map[gpu.UUID][]holder{}
	for _, pod := range pods.GetPodResources() {
		for _, container := range pod.GetContainers() {
			h := holder{validUTF8(pod.GetNamespace()), validUTF8(pod.GetName()), validUTF8(container.GetName())}
			hold := func(device gpu.UUID) {
				if !slices.Contains(all[device], h) {
					all[device] = append(all[device], h)
				}
			}
			for _, allocated := range container.GetDevices() {
				for _, id := range allocated.GetDeviceIds() {
					if device, ours := devices[key{allocated.GetResourceName(), id}]; ours {
						hold(device)
					}
				}
			}
			for _, claimed := range kubelet.ClaimedDevices(container) {
				if !slices.Contains(watched, claimed) {
					hold(claimed.GPU)
				}
			}
		}
	}
	return all, nil
}
