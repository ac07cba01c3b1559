package preflight

// phase is samples that run after one another on each device, all devices at once.
type phase struct {
	name    string
	samples []string
	args    func(simulated bool) []string // beside -o json; nil: none
	share   float64                       // of the whole time, when the phase has to be over
	peers   bool                          // once, with all GPUs
	link    bool                          // it measures the link to the host: see alone
}

var phases = []phase{
	{name: "correctness: vectoradd, reduction, gemm", samples: []string{"vectoradd", "reduction", "gemm"}, share: 0.45},
	{name: "bandwidth", samples: []string{"bandwidth"}, share: 0.64, link: true},
	{name: "bandwidth from GPU to GPU", samples: []string{"bandwidth"}, args: pairs, share: 0.74, peers: true},
	{name: "memtest", samples: []string{"memtest"}, args: memory, share: 0.88},
	{name: "compute", samples: []string{"compute"}, share: 1},
}

// pairs are copies small enough for 56 pairs. A simulated GPU's are smaller still,
// as the sample has them by default.
func pairs(simulated bool) []string {
	if simulated {
		return []string{"--peers"}
	}
	return append(smaller(false), "--peers")
}

// smaller makes bandwidth quick.
func smaller(bool) []string { return []string{"--bytes", "256Mi"} }

// memory is half of what is free: the whole takes a second more than there is on
// the largest GPUs.
func memory(simulated bool) []string {
	if simulated {
		return nil
	}
	return []string{"--share", "0.5"}
}
