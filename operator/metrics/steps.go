package metrics

import v1 "github.com/gpuready/gpuready/operator/api/v1"

// Steps returns the histograms stored in a policy's status.
func Steps(kept []v1.ProvisioningStatus) (all []Histogram) {
	bounds := v1.ProvisioningBounds()
	for _, k := range kept {
		h := Histogram{Step: k.Step, Sum: float64(k.SumSeconds), Buckets: map[float64]uint64{}}
		for i, n := range k.Buckets[:min(len(k.Buckets), len(bounds)+1)] {
			h.Count += uint64(max(n, 0))
			if i < len(bounds) {
				h.Buckets[bounds[i].Seconds()] = h.Count
			}
		}
		all = append(all, h)
	}
	return all
}
