// Package telemetry serves Prometheus metrics gpuready_gpu_…: what the GPUs and MIG devices of a
// node measure, and which pods hold them. On request it serves the same values also under the names
// of NVIDIA's dcgm-exporter. It reads nothing between scrapes.
package telemetry

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Node holds what the plugin knows of its node at a scrape. A Collector does not change it.
type Node struct {
	// Read reads what devices measure now; nil: there is no driver.
	Read    func(ctx context.Context, devices []gpu.Device) []gpu.Telemetry
	Devices []gpu.Device // of the last snapshot
	Plan    plan.Plan    // for the kubelet's IDs of the devices
}

// Config configures a Collector.
type Config struct {
	Node         func() Node // called at each scrape
	PodResources string      // path of the socket of the kubelet's PodResources API; "": pods are not shown
	DCGM         DCGM        // serve the names of this release of NVIDIA's dcgm-exporter, too
	Hostname     string      // value of dcgm-exporter's label hostname; "": the host's name
	// AdminAccess returns the devices of claims with administrative access, which hold nothing. The kubelet's account does
	// not tell them from others. nil: there is none.
	AdminAccess func() []nodestate.ClaimedDevice

	// ReadTimeout bounds the time of a scrape. A GPU that has not answered by then has no values,
	// and without the kubelet's answer pods are not known. 0 is 2 s.
	ReadTimeout time.Duration
}

// maxSampleAge is the time for which later scrapes get the values of an earlier one.
const maxSampleAge = time.Second

// Collector is a prometheus.Collector of a node's telemetry. Its methods may be called
// concurrently.
type Collector struct {
	cfg Config

	reading sync.Mutex // held while the node is read, so that scrapes share a reading
	last    sample

	mu   sync.Mutex
	xids map[gpu.UUID]xids
}

// xids sums up the XIDs of a GPU since the process started.
type xids struct{ count, last uint64 }

// NewCollector returns a Collector. It reads nothing before the first scrape.
func NewCollector(cfg Config) *Collector {
	if cfg.ReadTimeout <= 0 {
		cfg.ReadTimeout = 2 * time.Second
	}
	if cfg.DCGM != "" && cfg.Hostname == "" {
		cfg.Hostname, _ = os.Hostname() // without a name the label is empty
	}
	return &Collector{cfg: cfg, xids: map[gpu.UUID]xids{}}
}

// CountXID records an XID of a GPU.
func (c *Collector) CountXID(id gpu.UUID, xid uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.xids[id] = xids{c.xids[id].count + 1, xid}
}

func (c *Collector) xidsOf(id gpu.UUID) xids {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.xids[id]
}

// sample holds what one scrape read.
type sample struct {
	at        time.Time
	devices   []deviceSample
	podsKnown bool // the kubelet has reported who holds the devices
}

// deviceSample describes a GPU or MIG device at a scrape.
type deviceSample struct {
	gpu.Device
	mig     *gpu.MIGDevice // nil: the whole GPU
	values  gpu.Measurement
	xids    xids // of a whole GPU
	holders []holder
}

func (d deviceSample) id() gpu.UUID {
	if d.mig != nil {
		return d.mig.UUID
	}
	return d.UUID
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(all chan<- *prometheus.Desc) {
	describe().send(all)
	if c.cfg.DCGM != "" {
		describeDCGM[c.cfg.DCGM]().send(all)
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	s := c.read()
	for _, d := range s.devices {
		d.send(metrics)
	}
	if c.cfg.DCGM != "" {
		sendDCGM(metrics, s.devices, describeDCGM[c.cfg.DCGM](), c.cfg.Hostname)
	}
	if c.cfg.PodResources != "" {
		metrics <- prometheus.MustNewConstMetric(describe().podsKnown, prometheus.GaugeValue, boolValue(s.podsKnown))
	}
}

// read returns a sample that is at most maxSampleAge old.
func (c *Collector) read() sample {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.last.at.IsZero() || time.Since(c.last.at) >= maxSampleAge {
		c.last = c.readNode()
	}
	return c.last
}

// readNode reads the GPUs, and concurrently from the kubelet which containers hold them.
func (c *Collector) readNode() sample {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.ReadTimeout)
	defer cancel()
	node := c.cfg.Node()
	var s sample
	var holders map[gpu.UUID][]holder
	var group sync.WaitGroup
	group.Go(func() {
		if c.cfg.PodResources == "" {
			return
		}
		var err error
		holders, err = readHolders(ctx, c.cfg.PodResources, node.Plan, c.cfg.AdminAccess)
		s.podsKnown = err == nil
	})
	var measured []gpu.Telemetry
	devices := withUniqueUUID(node.Devices)
	if node.Read != nil {
		measured = node.Read(ctx, devices)
	}
	group.Wait()
	for i, d := range devices {
		if i >= len(measured) {
			break
		}
		s.devices = append(s.devices, deviceSample{Device: d, values: measured[i].GPU, xids: c.xidsOf(d.UUID), holders: holders[d.UUID]})
		for _, m := range d.MIG {
			if m.UUID != "" {
				s.devices = append(s.devices, deviceSample{Device: d, mig: &m, values: measured[i].MIG[m.UUID], holders: holders[m.UUID]})
			}
		}
	}
	s.at = time.Now()
	return s
}

// withUniqueUUID returns the GPUs that have a UUID, and of several with the same UUID the first. A
// broken GPU may report none, and two series with equal labels would fail the scrape.
func withUniqueUUID(devices []gpu.Device) []gpu.Device {
	seen := map[gpu.UUID]bool{"": true}
	return slices.DeleteFunc(slices.Clone(devices), func(d gpu.Device) bool {
		before := seen[d.UUID]
		seen[d.UUID] = true
		return before
	})
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// validUTF8 makes s a valid label value: an invalid one would panic when scraped.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
