package preflight

// phase lists samples that run one after the other on each device, on all devices at once.
type phase struct {
	name    string
	samples []string
	args    func(simulated bool) []string // beside -o json; nil: none
	share   float64                       // the share of the whole time by which the phase has to end
	peers   bool                          // run once, with all GPUs
	link    bool                          // it measures the link to the host: see remeasureLinks
}

var phases = []phase{
	{name: "correctness: vectoradd, reduction, gemm", samples: []string{"vectoradd", "reduction", "gemm"}, share: 0.45},
	{name: "bandwidth", samples: []string{"bandwidth"}, share: 0.64, link: true},
	{name: "bandwidth from GPU to GPU", samples: []string{"bandwidth"}, args: pairs, share: 0.74, peers: true},
	{name: "memtest", samples: []string{"memtest"}, args: memory, share: 0.88},
	{name: "compute", samples: []string{"compute"}, share: 1},
}

// pairs returns arguments for copies small enough for 56 pairs. A simulated GPU uses the
// sample's default, which is smaller still.
func pairs(simulated bool) []string {
	if simulated {
		return []string{"--peers"}
	}
	return append(smaller(false), "--peers")
}

// smaller returns arguments for a quick run of bandwidth.
func smaller(bool) []string { return []string{"--bytes", "256Mi"} }

// memory returns arguments for a test of half the free memory: on the largest GPUs the
// whole takes a second too long.
func memory(simulated bool) []string {
	if simulated {
		return nil
	}
	return []string{"--share", "0.5"}
}
