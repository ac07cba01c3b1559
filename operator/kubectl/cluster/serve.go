package cluster

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

// DRADriverName is the name of gpu-dra-driver in ResourceSlices and ResourceClaims.
const DRADriverName = "gpu.nvidia.com"

// Offer describes what a node offers to pods, and what they hold, by the API server.
type Offer struct {
	Node      *corev1.Node
	Published []string // names of the devices in the node's ResourceSlices
	Pods      []Holder // pods that hold devices of a resource nvidia.com/
	Claims    []Holder // claims that are allocated devices of the node's pool
}

// Holder is a pod or claim with its devices.
type Holder struct {
	Name    string   `json:"name"`    // namespace/name
	Devices []string `json:"devices"` // of a claim their names; of a pod the requests: "nvidia.com/gpu: 2"
}

// Offer reads what a node offers.
func (c *Client) Offer(ctx context.Context, name string) (Offer, error) {
	node, err := c.Node(ctx, name)
	if err != nil {
		return Offer{}, err
	}
	o := Offer{Node: node}
	slices, err := list[resourceapi.ResourceSlice](ctx, c, "/apis/resource.k8s.io/v1/resourceslices",
		params("fieldSelector", resourceapi.ResourceSliceSelectorDriver+"="+DRADriverName+","+resourceapi.ResourceSliceSelectorNodeName+"="+name))
	if err != nil && !apierrors.IsNotFound(err) {
		return o, err
	}
	for _, s := range slices {
		for _, d := range s.Spec.Devices {
			o.Published = append(o.Published, d.Name)
		}
	}
	pods, err := c.PodsOn(ctx, name)
	if err != nil {
		return o, err
	}
	for i := range pods {
		if h := podHolder(&pods[i]); h.Devices != nil {
			o.Pods = append(o.Pods, h)
		}
	}
	claims, err := c.ResourceClaims(ctx)
	if err != nil {
		return o, err
	}
	for _, u := range claims {
		var claim resourceapi.ResourceClaim
		if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &claim) != nil {
			continue // of a version that this program does not know
		}
		if h := claimHolder(&claim, name); h.Devices != nil {
			o.Claims = append(o.Claims, h)
		}
	}
	return o, nil
}

// podHolder returns the requests of a pod that runs, or is about to, for GPUs of the device plugin.
func podHolder(p *corev1.Pod) Holder {
	h := Holder{Name: p.Namespace + "/" + p.Name}
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return h
	}
	for _, c := range append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...) {
		for name, n := range c.Resources.Limits {
			if text := string(name) + ": " + n.String(); strings.HasPrefix(string(name), "nvidia.com/") && !slices.Contains(h.Devices, text) {
				h.Devices = append(h.Devices, text)
			}
		}
	}
	slices.Sort(h.Devices)
	return h
}

// claimHolder returns the devices of a node that a claim is allocated.
func claimHolder(c *resourceapi.ResourceClaim, node string) Holder {
	h := Holder{Name: c.Namespace + "/" + c.Name}
	if c.Status.Allocation == nil {
		return h
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == DRADriverName && r.Pool == node && (r.AdminAccess == nil || !*r.AdminAccess) {
			h.Devices = append(h.Devices, r.Device)
		}
	}
	return h
}
