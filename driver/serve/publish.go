package serve

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// publish writes the driver's state file. A Degraded state keeps the data of the driver.
func (d *Driver) publish(phase nodestate.Phase, reason gpu.Reason, message string) error {
	d.mu.Lock()
	s := nodestate.State{Component: nodestate.Driver, Phase: phase, Reason: reason, Message: message}
	if phase == nodestate.Degraded {
		s.Driver = d.published.Driver
	}
	d.published = s
	d.mu.Unlock()
	return nodestate.Write(d.dir(), s)
}

// isNewWait reports whether e differs from the reason that was published last.
func (d *Driver) isNewWait(e *kernel.Error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.published.Reason != e.Reason || d.published.Message != e.Message
}

// publishReady publishes the state of the loaded driver. Its message has the notes about the node, and names
// optional daemons that do not run.
func (d *Driver) publishReady(s Snapshot) error {
	state := nodestate.State{Component: nodestate.Driver, Phase: nodestate.Ready, Driver: &nodestate.DriverInfo{
		Root: d.Root, Version: s.Version, Simulated: s.Files["nvidia"].Simulated(),
	}}
	notes := d.notes
	if d.daemons != nil {
		var failed string
		if d.daemons.failedOptional, failed = d.daemons.findFailedOptional(); failed != "" {
			notes = append(slices.Clone(notes), failed)
		}
	}
	state.Message = record.Clean(strings.Join(notes, "; "), maxFailureText)
	d.mu.Lock()
	d.published = state
	d.mu.Unlock()
	return nodestate.Write(d.dir(), state)
}

// Ready returns nil if the driver is ready, else why it is not.
func (d *Driver) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.published.Phase {
	case nodestate.Ready:
		return nil
	case "":
		return errors.New("starting")
	}
	return fmt.Errorf("%s: %s", d.published.Reason, d.published.Message)
}

// register registers the driver's metric.
func (d *Driver) register(r *prometheus.Registry) {
	r.MustRegister(&collector{d, prometheus.NewDesc("gpuready_driver_info", "1 where the driver is loaded and shown.", []string{"root", "version", "simulated"}, nil)})
}

type collector struct {
	driver *Driver
	info   *prometheus.Desc
}

func (c *collector) Describe(descs chan<- *prometheus.Desc) { descs <- c.info }

func (c *collector) Collect(values chan<- prometheus.Metric) {
	c.driver.mu.Lock()
	s := c.driver.published
	c.driver.mu.Unlock()
	if s.Phase == nodestate.Ready {
		values <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, s.Driver.Root, s.Driver.Version, fmt.Sprint(s.Driver.Simulated))
	}
}
