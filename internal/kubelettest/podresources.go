package kubelettest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// podLister serves the PodResources API, v1.
type podLister struct {
	podresources.UnimplementedPodResourcesListerServer
	kubelet *Kubelet
}

// List returns every pod that was admitted and not removed, even without devices.
func (l *podLister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k := l.kubelet
	k.mu.Lock()
	defer k.mu.Unlock()
	resp := &podresources.ListPodResourcesResponse{}
	for _, uid := range slices.Sorted(maps.Keys(k.pods)) {
		resp.PodResources = append(resp.PodResources, k.podResources(uid))
	}
	return resp, nil
}

// Get returns one pod.
func (l *podLister) Get(_ context.Context, req *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	k := l.kubelet
	uid := Pod{Namespace: req.GetPodNamespace(), Name: req.GetPodName()}.UID()
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.pods[uid]; !ok {
		return nil, fmt.Errorf("pod %s in namespace %s not found", req.GetPodName(), req.GetPodNamespace())
	}
	return &podresources.GetPodResourcesResponse{PodResources: k.podResources(uid)}, nil
}

// GetAllocatableResources returns the healthy devices, allocated or not.
func (l *podLister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	k := l.kubelet
	k.mu.Lock()
	defer k.mu.Unlock()
	resp := &podresources.AllocatableResourcesResponse{}
	for _, name := range slices.Sorted(maps.Keys(k.resources)) {
		r := k.resources[name]
		resp.Devices = append(resp.Devices, containerDevices(name, r.byNode(slices.Sorted(maps.Keys(r.healthy))))...)
	}
	return resp, nil
}

// podResources describes a pod; k.mu is held.
func (k *Kubelet) podResources(uid string) *podresources.PodResources {
	pod := k.pods[uid]
	out := &podresources.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	byContainer := map[string]*podresources.ContainerResources{pod.Container: {Name: pod.Container}}
	for _, a := range k.allocations {
		if a.uid != uid || a.pending {
			continue
		}
		c := byContainer[a.container]
		if c == nil {
			c = &podresources.ContainerResources{Name: a.container}
			byContainer[a.container] = c
		}
		c.Devices = append(c.Devices, containerDevices(a.resource, a.numa)...)
	}
	for _, name := range slices.Sorted(maps.Keys(byContainer)) {
		out.Containers = append(out.Containers, byContainer[name])
	}
	return out
}

// containerDevices has one entry for each device and NUMA node, as the kubelet's.
func containerDevices(resource string, byNode map[int64][]string) []*podresources.ContainerDevices {
	var out []*podresources.ContainerDevices
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		for _, id := range byNode[node] {
			d := &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}}
			if node != noNode {
				d.Topology = &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: node}}}
			}
			out = append(out, d)
		}
	}
	return out
}
