package plan_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// Every label is valid for Kubernetes, whatever the driver and the firmware
// report, and the same node has the same labels.
func TestLabelsAreAlwaysValid(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"NVIDIA A100-SXM4-80GB", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "-", " (TM)", ""}))
	profile := rapid.OneOf(rapid.SampledFrom([]string{"1g.10gb", "1g.10gb+me", "1c.3g.40gb", "1g.24gb-me", "1g.5gb+" + strings.Repeat("x", 60)}), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		s := gputest.Node("a100-80gb", rapid.IntRange(1, 5).Draw(t, "gpus"))
		s.Driver.Version = rapid.OneOf(rapid.Just("580.95.05"), rapid.StringMatching(`[0-9x.\n]{0,80}`)).Draw(t, "driver")
		for i := range s.Devices {
			d := &s.Devices[i]
			d.Product = text.Draw(t, "product")
			d.Compute = gpu.Compute{Major: rapid.IntRange(0, 20).Draw(t, "major"), Minor: rapid.IntRange(0, 9).Draw(t, "minor")}
			if rapid.Bool().Draw(t, "MIG") {
				*d = gputest.WithMIG(*d, rapid.SliceOfN(profile, 0, 3).Draw(t, "layout")...)
			}
		}
		c := "flags: {migStrategy: " + rapid.SampledFrom([]string{"none", "single", "mixed"}).Draw(t, "strategy") + "}\n" +
			"devices: {" + rapid.SampledFrom([]string{"", "include: [0, '1:0']", "exclude: ['0:0', 1]"}).Draw(t, "chosen") + "}\n" +
			rapid.SampledFrom([]string{"", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}, {name: mig-1g.10gb, replicas: 2, rename: x}]}}", "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}"}).Draw(t, "sharing")
		n := labelInput(t, c, s)
		n.Machine.ProductName = text.Draw(t, "machine")
		l := plan.Labels(n)
		valid(t, l)
		require.Equal(t, l, plan.Labels(n))
		checkCounts(t, n, l)
	})
}

// counts checks that every advertised device is counted: a product's count is at least
// that of the plan, and 0 only if there is none.
func checkCounts(t *rapid.T, n plan.LabelInput, l map[string]string) {
	named := !slices.ContainsFunc(n.Snapshot.Devices, func(d gpu.Device) bool { return d.Product == "" })
	if len(n.Plan.Resources) > 0 && named {
		require.NotEqual(t, "0", l["nvidia.com/gpu.count"])
	}
	for _, r := range n.Plan.Resources {
		if !strings.HasPrefix(r.Name, "nvidia.com/mig-") {
			continue
		}
		if len(l) == 0 || l[r.Name+".count"] == "" {
			continue // its GPU has no name, or the profile is too long for a label
		}
		devices, replicas := 0, 1
		for _, d := range r.Devices {
			if product(n.Snapshot, d.GPU) != "" && d.Replica == 0 {
				devices, replicas = devices+1, max(1, d.Replicas)
			}
		}
		require.Equal(t, strconv.Itoa(devices), l[r.Name+".count"])
		require.Equal(t, strconv.Itoa(replicas), l[r.Name+".replicas"])
	}
}

func product(s gpu.Snapshot, id gpu.UUID) string {
	d, _ := s.Device(id)
	return d.Product
}
