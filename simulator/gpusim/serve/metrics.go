package serve

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/simulator/state"
)

// register registers the metrics of the driver.
func (d *driver) register(r *prometheus.Registry) {
	r.MustRegister(
		&collector{
			driver: d,
			info:   prometheus.NewDesc("gpuready_driver_info", "1 where the driver is there.", []string{"root", "version", "cuda", "machine", "simulated"}, nil),
			gpus:   prometheus.NewDesc("gpuready_driver_gpus", "GPUs of the machine.", nil, nil),
			lost:   prometheus.NewDesc("gpuready_driver_lost_gpus", "GPUs that are lost now.", nil, nil),
			events: prometheus.NewDesc("gpuready_driver_events_total", "Events that the driver has raised so far.", nil, nil),
		},
	)
}

// collector reads the driver's state at each scrape.
type collector struct {
	*driver
	info, gpus, lost, events *prometheus.Desc
}

func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.info, c.gpus, c.lost, c.events} {
		descs <- d
	}
}

func (c *collector) Collect(values chan<- prometheus.Metric) {
	if c.ready() != nil {
		return // there is no driver to tell of
	}
	f, err := c.at(c.Root).Open()
	if err != nil {
		return
	}
	var s state.State
	f.Read(&s)
	events := f.EventCount()
	if err := f.Close(); err != nil {
		return
	}
	lost := 0
	for _, g := range s.GPUs() {
		if g.Lost != state.LostNo {
			lost++
		}
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(c.info, 1, c.shared.Root, c.shared.Version, c.shared.CUDAVersion, state.Text(s.Profile[:]), "true")
	gauge(c.gpus, float64(s.Ngpus))
	gauge(c.lost, float64(lost))
	values <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(events))
}
