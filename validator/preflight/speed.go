package preflight

import (
	"fmt"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/probe"
)

// maxFigures bounds the figures taken from one sample.
const maxFigures = 32

// judgeFigures judges the figures that the samples measured on a device.
func judgeFigures(g *GPU, s Observations, t Thresholds, simulated bool) {
	for _, run := range s.Runs {
		if run.Device != g.UUID || run.Outcome != probe.SamplePassed || run.Answer.Simulated != simulated {
			continue
		}
		for _, f := range run.Answer.Figures[:min(len(run.Answer.Figures), maxFigures)] {
			g.Figures = append(g.Figures, judgeFigure(g, f, t, simulated))
		}
	}
	if _, known := t.Product(g.Product); !known && !simulated && len(g.Figures) > 0 {
		g.Notes = append(g.Notes, fmt.Sprintf("%q is not in the table of thresholds: what is not known of it is shown and not judged; see --thresholds", g.Product))
	}
}

// judgeFigure judges one figure. No datasheet describes a MIG device, so its figures are only
// compared with those of its equals.
func judgeFigure(g *GPU, f probe.Figure, t Thresholds, simulated bool) Figure {
	out := Figure{Name: record.Clean(f.Name, 40), Unit: record.Clean(f.Unit, 10)}
	if simulated || f.Value <= 0 {
		return out
	}
	out.Value, out.Verdict = f.Value, OK
	if g.Parent != "" {
		return out
	}
	product, _ := t.Product(g.Product)
	var key string
	out.Expected, out.Source, key = expected(g, f, t)
	out.Limit = out.Expected * t.Share(f.Name, product, key, g.Compute)
	rate := f.Name == figureFP32 || f.Name == figureBF16
	_, own := product.Limits[f.Name]
	if rate && !own && product.rate(f.Name) == 0 {
		out.Limit = 0 // the driver's attributes give the highest clock, which power seldom allows
	}
	if f.Value >= out.Limit {
		return out
	}
	message := fmt.Sprintf("%s: measured %s, expected %s (%s), limit %s",
		out.Name, Speed(f.Value, out.Unit), Speed(out.Expected, out.Unit), out.Source, Speed(out.Limit, out.Unit))
	if rate && g.limitedBy != "" && !own {
		g.Notes = append(g.Notes, message+": not judged, since "+g.limitedBy+" held the clocks down")
		return out
	}
	out.Verdict = Slow
	g.Findings = append(g.Findings, Finding{Verdict: Slow, Reason: ReasonSlow, Figure: f.Name, Message: message, Action: speedAction(f.Name)})
	return out
}

// HostLinkMissed reports whether a device like g missed the limit of its link to the host.
// Several GPUs that use their links at once may share one.
func HostLinkMissed(g GPU, figures []probe.Figure, t Thresholds) bool {
	product, _ := t.Product(g.Product)
	for _, f := range figures {
		if !isHostLink(f.Name) || f.Value <= 0 {
			continue
		}
		if rate, _, key := expectedHostRate(&g, t); f.Value < rate*t.Share(f.Name, product, key, g.Compute) {
			return true
		}
	}
	return false
}

// MergeHostLink copies better figures of the link to the host from a run of the device alone,
// and notes the figures measured with all devices at once.
func MergeHostLink(a *probe.SampleAnswer, alone probe.SampleAnswer) {
	for i, f := range a.Figures {
		for _, own := range alone.Figures {
			if own.Name == f.Name && isHostLink(f.Name) && own.Value > f.Value {
				a.Figures[i].Value = own.Value
				a.Notes = append(a.Notes, fmt.Sprintf("%s: measured alone; %s while all GPUs used their links", f.Name, Speed(f.Value, f.Unit)))
			}
		}
	}
}

func speedAction(name string) string {
	switch name {
	case figureHostToDevice, figureDeviceToHost:
		return "compare generation and width of the PCIe link with the neighbours (nvidia-smi -q), see that IOMMU, ACS and the NUMA node of the memory are as there; run again on an idle node"
	case figureFP32, figureBF16:
		return "look at clocks, temperature and power limit (nvidia-smi -q -d CLOCK,PERFORMANCE,POWER); see that nothing else runs on the GPU, and run again"
	}
	return "see that nothing else runs on the GPU (nvidia-smi), and run again; if it stays so, take the GPU out of service"
}

// expected returns the expected value of a figure, its source, and the key of its limits if it has one of its
// own; 0 if it is not known.
func expected(g *GPU, f probe.Figure, t Thresholds) (value float64, source, key string) {
	if isHostLink(f.Name) {
		return expectedHostRate(g, t)
	}
	product, _ := t.Product(g.Product)
	if rate := product.rate(f.Name); rate > 0 {
		return rate, "datasheet", ""
	}
	if f.Peak > 0 {
		return f.Peak, "driver attributes", ""
	}
	return 0, "", ""
}

// minEqual is the least number of equal devices among which an outlier can be named.
const minEqual = 3

// findOutliers adds findings for figures far below the median of equal devices. GPUs in slots of different
// kinds are not equal with regard to the link to the host.
func findOutliers(r *Result, below float64) {
	type kind struct {
		product, profile, figure string
		link                     float64 // the rate expected of the link to the host
	}
	groups := map[kind][]float64{}
	kindOf := func(g GPU, f Figure) kind {
		k := kind{product: g.Product, profile: g.Profile, figure: f.Name}
		if isHostLink(f.Name) {
			k.link = f.Expected
		}
		return k
	}
	each := func(do func(g *GPU, f *Figure)) {
		for i := range r.GPUs {
			for k := range r.GPUs[i].Figures {
				if r.GPUs[i].Figures[k].Value > 0 {
					do(&r.GPUs[i], &r.GPUs[i].Figures[k])
				}
			}
		}
	}
	each(func(g *GPU, f *Figure) {
		groups[kindOf(*g, *f)] = append(groups[kindOf(*g, *f)], f.Value)
	})
	each(func(g *GPU, f *Figure) {
		group := groups[kindOf(*g, *f)]
		if len(group) < minEqual {
			return
		}
		f.Median = median(group)
		if below == 0 || f.Value > f.Median*(1-below) {
			return
		}
		if f.Verdict == Slow {
			return // there is a finding already
		}
		f.Verdict = Slow
		g.Findings = append(g.Findings, Finding{
			Verdict: Slow, Reason: ReasonOutlier, Figure: f.Name,
			Message: fmt.Sprintf("%s: measured %s, %.0f %% below the median of its equals here, %s", f.Name, Speed(f.Value, f.Unit), 100*(1-f.Value/f.Median), Speed(f.Median, f.Unit)),
			Action:  speedAction(f.Name),
		})
	})
}

// Speed formats a speed for people: "3103 GB/s", "66.9 TFLOP/s".
func Speed(value float64, unit string) string {
	switch unit {
	case "B/s":
		value, unit = value/1e9, "GB/s"
	case "FLOP/s":
		value, unit = value/1e12, "TFLOP/s"
	}
	return Number(value) + " " + unit
}

// Number formats a figure with at least three digits: "3103", "66.9", "4.21".
func Number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
