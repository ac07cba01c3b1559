package cluster

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/internal/explain"
)

// draDriver is the name of the DRA driver in ResourceSlices and in allocated claims.
const draDriver = "gpu.nvidia.com"

const resourceAPI = "/apis/resource.k8s.io/v1/"

// ResourceSlices reads the ResourceSlices of the DRA driver: those of a node, or of all if node is "".
// A cluster without their API has none.
func (c *Client) ResourceSlices(ctx context.Context, node string) ([]resourcev1.ResourceSlice, error) {
	fields := resourcev1.ResourceSliceSelectorDriver + "=" + draDriver
	if node != "" {
		fields += "," + resourcev1.ResourceSliceSelectorNodeName + "=" + node
	}
	all, err := list[resourcev1.ResourceSlice](ctx, c, resourceAPI+"resourceslices", params("fieldSelector", fields))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return all, err
}

// DeviceClasses reads all DeviceClasses. A cluster without their API has none.
func (c *Client) DeviceClasses(ctx context.Context) ([]resourcev1.DeviceClass, error) {
	all, err := list[resourcev1.DeviceClass](ctx, c, resourceAPI+"deviceclasses", nil)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return all, err
}

// GPUClaims reads the ResourceClaims that have devices of the DRA driver. A cluster without their
// API has none.
func (c *Client) GPUClaims(ctx context.Context) (ours []resourcev1.ResourceClaim, err error) {
	all, err := list[resourcev1.ResourceClaim](ctx, c, resourceAPI+"resourceclaims", nil)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	for _, claim := range all {
		if len(allocated(&claim)) > 0 {
			ours = append(ours, claim)
		}
	}
	return ours, err
}

// allocated returns the devices of the DRA driver that a claim has.
func allocated(claim *resourcev1.ResourceClaim) (devices []resourcev1.DeviceRequestAllocationResult) {
	if claim.Status.Allocation == nil {
		return nil
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == draDriver {
			devices = append(devices, result)
		}
	}
	return devices
}

// offer reads the devices that the DRA driver has published for a node, in the pool of the node's name, and the
// claims that have them. Claims are
// read only if there are devices: a cluster may have many.
func (c *Client) offer(ctx context.Context, node string) *explain.Offer {
	all, err := c.ResourceSlices(ctx, node)
	o := &explain.Offer{Err: err}
	if err != nil {
		return o
	}
	latest := map[string]int64{} // generation of each pool: an update may leave slices of an earlier one for a while
	for _, s := range all {
		latest[s.Spec.Pool.Name] = max(latest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
	}
	at := map[string]int{}
	for _, s := range all {
		if s.Spec.Pool.Generation < latest[s.Spec.Pool.Name] {
			continue
		}
		for _, d := range s.Spec.Devices {
			device := explain.Device{Name: d.Name}
			for _, t := range d.Taints {
				text := fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
				if t.TimeAdded != nil {
					text += ", since " + t.TimeAdded.UTC().Format("2006-01-02T15:04:05Z")
				}
				device.Taints = append(device.Taints, text)
			}
			at[d.Name] = len(o.Devices)
			o.Devices = append(o.Devices, device)
		}
	}
	if len(o.Devices) == 0 {
		return o
	}
	claims, err := c.GPUClaims(ctx)
	o.ClaimsErr = err
	for _, claim := range claims {
		for _, result := range allocated(&claim) {
			if i, known := at[result.Device]; known && result.Pool == node {
				o.Devices[i].Claims = append(o.Devices[i].Claims, claim.Namespace+"/"+claim.Name)
			}
		}
	}
	return o
}
