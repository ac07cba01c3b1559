package preflight

// phase lists CUDA samples (cuda-samples/) that run one after the other on each device. All devices run
// them at once.
type phase struct {
	name    string
	samples []string
	args    func(simulated bool) []string // beside -o json; nil: none
	endBy   float64                       // the phase has to end by this share of the whole time
	peers   bool                          // the samples run once, with all GPUs
	link    bool                          // it measures the link to the host: see remeasureLinks
}

var phases = []phase{
	{name: "correctness: vectoradd, reduction, gemm", samples: []string{"vectoradd", "reduction", "gemm"}, endBy: 0.45},
	{name: "bandwidth", samples: []string{"bandwidth"}, endBy: 0.64, link: true},
	{name: "bandwidth from GPU to GPU", samples: []string{"bandwidth"}, args: pairs, endBy: 0.74, peers: true},
	{name: "memtest", samples: []string{"memtest"}, args: memory, endBy: 0.88},
	{name: "compute", samples: []string{"compute"}, endBy: 1},
}

// pairs returns arguments for copies small enough for 56 pairs: eight GPUs, both directions. A simulated GPU uses the
// sample's default, which is smaller still.
func pairs(simulated bool) []string {
	if simulated {
		return []string{"--peers"}
	}
	return append(quickBandwidth(false), "--peers")
}

// quickBandwidth returns arguments for a quick run of bandwidth, for whatever GPU.
func quickBandwidth(bool) []string { return []string{"--bytes", "256Mi"} }

// memory returns arguments for a test of half the free memory. To test all of it takes a second more
// than the phase has, on the largest GPUs.
func memory(simulated bool) []string {
	if simulated {
		return nil
	}
	return []string{"--share", "0.5"}
}
