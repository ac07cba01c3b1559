package preflight

import (
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/probe"
)

// judgePeers adds to r the speed of each path between two GPUs that the CUDA sample bandwidth has measured,
// and findings about the GPUs that slow paths have in common. If the sample did not pass, it adds a
// finding about that instead.
func judgePeers(r *Result, run SampleRun, s Observations, t Thresholds) {
	switch run.Outcome {
	case probe.SamplePassed:
	case probe.SampleImpossible: // these GPUs cannot run the sample: there is nothing to judge
		return
	case probe.SampleNoResult:
		addPeersFinding(r, run, NotRun, ReasonNoResult)
		return
	case probe.SampleWrong:
		addPeersFinding(r, run, Wrong, ReasonWrong)
		return
	default:
		if run.MeansInUse() {
			addPeersFinding(r, run, NotRun, ReasonInUse)
			return
		}
		addPeersFinding(r, run, Unhealthy, ReasonSample)
		return
	}
	known := func(id gpu.UUID) (*GPU, bool) {
		i := slices.IndexFunc(r.GPUs, func(g GPU) bool { return g.UUID == id })
		if i < 0 {
			return nil, false
		}
		return &r.GPUs[i], true
	}
	for _, p := range run.Answer.Peers {
		from, isFrom := known(p.From)
		if _, isTo := known(p.To); isFrom && isTo && p.From != p.To {
			r.Peers = append(r.Peers, judgePeer(from, p, s.Snapshot, t, r.Simulated))
		}
	}
	blame(r, known)
}

// addPeersFinding adds the finding about a sample that did not pass.
func addPeersFinding(r *Result, run SampleRun, v Verdict, reason gpu.Reason) {
	r.Findings = append(r.Findings, Finding{Verdict: v, Reason: reason, Message: "from GPU to GPU: " + record.Clean(run.Message, 1000),
		Action: "repeat by hand: " + run.Sample + "; where there are switches, see the fabric manager's log"})
}

// judgePeer judges the speed of one path by its NVLinks. The speed of PCIe between two GPUs depends on the
// machine: a path without NVLinks has the limit 0, and is always OK.
func judgePeer(from *GPU, p probe.Peer, snapshot gpu.Snapshot, t Thresholds, simulated bool) Peer {
	out := Peer{From: p.From, To: p.To, Access: p.Access, Unit: record.Clean(p.Unit, 10)}
	i := slices.IndexFunc(snapshot.Links, func(l gpu.Link) bool {
		return l.A == p.From && l.B == p.To || l.A == p.To && l.B == p.From
	})
	var lanes int
	if i >= 0 {
		out.Link = snapshot.Links[i].Kind.String()
		if lanes = snapshot.Links[i].Lanes; lanes > 0 {
			out.Link = fmt.Sprintf("NV%d", lanes)
		}
	}
	if simulated || p.Value <= 0 { // a simulated speed means nothing
		return out
	}
	out.Value, out.Verdict = p.Value, OK
	product, _ := t.Product(from.Product)
	out.Expected = float64(lanes) * product.NVLinkRate * 1e9
	out.Limit = out.Expected * t.Share(figurePeer, product, from.Compute)
	if p.Value < out.Limit {
		out.Verdict = Slow
	}
	return out
}

// blame names the GPUs that slow paths have in common: first the one with most slow paths,
// then the one with most of the rest, and so on. GPUs with equally many are all named: so both ends of
// a single slow path are, since either may be at fault.
func blame(r *Result, known func(gpu.UUID) (*GPU, bool)) {
	var slow []Peer
	for _, p := range r.Peers {
		if p.Verdict == Slow {
			slow = append(slow, p)
		}
	}
	for len(slow) > 0 {
		count := map[gpu.UUID]int{}
		most := 0
		for _, p := range slow {
			count[p.From]++
			count[p.To]++
			most = max(most, count[p.From], count[p.To])
		}
		var named []gpu.UUID
		for _, g := range r.GPUs {
			if count[g.UUID] == most {
				named = append(named, g.UUID)
			}
		}
		for _, id := range named {
			if g, ok := known(id); ok {
				addSlowPaths(g, slow, known)
			}
		}
		slow = slices.DeleteFunc(slow, func(p Peer) bool {
			return slices.Contains(named, p.From) || slices.Contains(named, p.To)
		})
	}
}

// addSlowPaths adds the finding about the slow paths of one GPU.
func addSlowPaths(g *GPU, slow []Peer, known func(gpu.UUID) (*GPU, bool)) {
	var worst *Peer
	var paths int
	for i, p := range slow {
		if p.From != g.UUID && p.To != g.UUID {
			continue
		}
		paths++
		if worst == nil || p.Value < worst.Value {
			worst = &slow[i]
		}
	}
	if worst == nil {
		return
	}
	direction, other := "to", worst.To
	if worst.To == g.UUID {
		direction, other = "from", worst.From
	}
	index := string(other)
	if o, ok := known(other); ok {
		index = "GPU " + o.Index
	}
	count := "slow"
	if paths > 1 {
		count = fmt.Sprintf("%d ways to or from other GPUs are slow, the slowest", paths)
	}
	g.Findings = append(g.Findings, Finding{
		Verdict: Slow, Reason: ReasonSlowPeer, Figure: figurePeer,
		Message: fmt.Sprintf("%s %s %s (%s): measured %s, expected %s, limit %s", count, direction, index, worst.Link,
			Speed(worst.Value, worst.Unit), Speed(worst.Expected, worst.Unit), Speed(worst.Limit, worst.Unit)),
		Action: "see nvidia-smi nvlink -s and -e (errors of links) on both ends, and the fabric manager's log",
	})
}
