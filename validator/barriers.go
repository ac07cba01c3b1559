package main

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/metricsserver"
	"github.com/gpuready/gpuready/internal/readiness"
)

// barriers serves the gauges of the reference's node status exporter, for its dashboards.
// They are read from the files at each request; a file from another boot counts as 0.
func barriers(ctx context.Context, port int, dir, boot, node string) error {
	return metricsserver.Serve(ctx, fmt.Sprintf(":%d", port), gauges(dir, boot, node), func() error { return nil })
}

func gauges(dir, boot, node string) *prometheus.Registry {
	registry := metricsserver.NewRegistry()
	gauge := func(name, help string, value func() float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "gpu_operator_node_" + name, Help: help, ConstLabels: prometheus.Labels{"node": node}}, value))
	}
	started := float64(time.Now().Unix())
	gauge("metrics_ready_ts_seconds", "When this program was started.", func() float64 { return started })
	for _, l := range readiness.Layers() {
		gauge(string(l)+"_ready", fmt.Sprintf("1 if %s is proven in this boot, else 0.", l), func() float64 {
			if s, err := readiness.Read(dir, l, boot); err != nil || s.Proof == nil {
				return 0
			}
			return 1
		})
	}
	gauge("device_plugin_devices_total", "Devices that the kubelet could allocate when plugin was proven; -1: it is not proven.", func() float64 {
		s, err := readiness.Read(dir, readiness.Plugin, boot)
		if err != nil || s.Proof == nil {
			return -1
		}
		total := 0
		for _, n := range s.Proof.Resources {
			total += n
		}
		return float64(total)
	})
	return registry
}
