package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
)

// changing returns the policy while nodes change to the DRA driver.
func changing() *v1.ClusterPolicy {
	p := policy()
	p.Status.Serve = &v1.ServeStatus{Want: v1.ServeDRA, Total: 8, DRA: 3, InProgress: 2, Pending: 5, ByPerson: 1, Unsupported: 1, Waiting: []v1.UpgradeWait{
		{Node: "gpu-1", Message: "the device plugin still offers resources of nvidia.com to pods"},
	}}
	return p
}

// served returns a cluster whose node gpu-1 serves claims: of its three devices one has a taint, and
// another is in a claim.
func served() *api {
	a := fixture()
	n := node("gpu-1", "True", "Ready", "3 of 3 GPUs ready, driver 580.95.05")
	n.Labels[label.Serve] = "dra"
	n.Status.Capacity["nvidia.com/gpu"], n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("0"), resource.MustParse("0")
	a.lists["/api/v1/nodes"] = []any{n}
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: new("gpu-1")}}
	for i := range 3 {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", i)})
	}
	since := ago(0)
	s.Spec.Devices[2].Taints = []resourcev1.DeviceTaint{{Key: "gpuready.io/unhealthy", Value: "XID", Effect: "NoSchedule", TimeAdded: &since}}
	s.Spec.Pool = resourcev1.ResourcePool{Name: "gpu-1", Generation: 2}
	earlier := s.DeepCopy() // not removed yet
	earlier.Name, earlier.Spec.Pool.Generation, earlier.Spec.Devices[2].Taints = "e", 1, nil
	a.lists["/apis/resource.k8s.io/v1/resourceslices"] = []any{earlier, s}
	claim := func(name, driver, pool string) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Driver: driver, Pool: pool, Device: "gpu-1"}},
			Config:  []resourcev1.DeviceAllocationConfiguration{{DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(`{"note":"hunter2"}`)}}}}},
		}}
		return c
	}
	a.lists["/apis/resource.k8s.io/v1/resourceclaims"] = []any{claim("job", "gpu.nvidia.com", "gpu-1"), claim("other-node", "gpu.nvidia.com", "gpu-2"), claim("nic", "dra.example.com", "gpu-1")}
	return a
}

func TestExplainShowsClaimsWhereNoResourceIsRight(t *testing.T) {
	text := func(a *api) string {
		n, err := serve(t, a).Explain(t.Context(), "gpu-1", "", now)
		require.NoError(t, err)
		var b bytes.Buffer
		require.NoError(t, explanation(n).text(&b, style{Width: 100}))
		return b.String()
	}
	requireGolden(t, "explain-dra.txt", text(served()))
	a := served()
	a.forbidden = "/resourceclaims"
	require.Contains(t, text(a), "the ResourceClaims cannot be listed: Forbidden")
	a.forbidden = "/resourceslices"
	require.Contains(t, text(a), "the ResourceSlices cannot be listed: Forbidden")
	delete(a.lists, "/apis/resource.k8s.io/v1/resourceslices")
	a.forbidden = ""
	require.Contains(t, text(a), "waiting at kubelet: gpu-dra-driver has published no device of the node")
}

// Without a device plugin every device has a taint, and a GPU that is partitioned as claims need it has
// dozens of devices.
func TestExplainBoundsTheTaints(t *testing.T) {
	a := served()
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: new("gpu-1")}}
	for i := range 64 {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", i), Taints: []resourcev1.DeviceTaint{{Key: "gpuready.io/unhealthy", Value: "DevicePluginSilent", Effect: "NoSchedule"}}})
	}
	a.lists["/apis/resource.k8s.io/v1/resourceslices"] = []any{s}
	n, err := serve(t, a).Explain(t.Context(), "gpu-1", "", now)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, explanation(n).text(&b, style{Width: 100}))
	require.Equal(t, 8, strings.Count(b.String(), "DevicePluginSilent"))
	require.Contains(t, b.String(), "64 devices, 64 with a taint")
	require.Contains(t, b.String(), "56 more devices have a taint: see kubectl get resourceslices -o yaml")
}

func TestMustGatherHasTheClaims(t *testing.T) {
	to := filepath.Join(t.TempDir(), "all.tar.gz")
	code, _, stderr := run(t, served(), "must-gather", "--to", to)
	require.Equal(t, 0, code, stderr)
	all := files(t, to)
	require.Contains(t, all["resourceslices.json"], "gpuready.io/unhealthy")
	require.Contains(t, all["resourceclaims.json"], "other-node")
	require.NotContains(t, all["resourceclaims.json"], "dra.example.com", "others' claims are not read")
	require.NotContains(t, all["resourceclaims.json"], "hunter2")
}
