package telemetry

import (
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/gpu"
)

// metric serves one quantity.
type metric struct {
	quantity gpu.Quantity
	desc     *prometheus.Desc
	kind     prometheus.ValueType
	convert  func(uint64) float64 // from NVML's unit
	values   []string             // of the labels that desc has besides those of the device
}

// The units of NVML in Prometheus' base units.
func plain(v uint64) float64   { return float64(v) }
func percent(v uint64) float64 { return float64(v) / 100 }
func milli(v uint64) float64   { return float64(v) / 1e3 }
func mega(v uint64) float64    { return float64(v) * 1e6 }

// descriptions describes the metrics under our own names.
type descriptions struct {
	gpu, mig                              []metric
	xidCount, lastXID, podInfo, podsKnown *prometheus.Desc
}

// describe returns the descriptions. The first call makes them, after the plugin's start, which they
// would slow down.
var describe = sync.OnceValue(func() descriptions {
	var d descriptions
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"gpu", "uuid", "model"}, labels...), nil)
	}
	gauge := func(q gpu.Quantity, name, help string, convert func(uint64) float64) {
		d.gpu = append(d.gpu, metric{q, desc(name, help), prometheus.GaugeValue, convert, nil})
	}
	memory := func(q gpu.Quantity, name, migName, help string) {
		gauge(q, name, fmt.Sprintf(help, "GPU"), plain)
		d.mig = append(d.mig, metric{q, desc(migName, fmt.Sprintf(help, "MIG device"), "profile", "gpu_instance", "compute_instance"), prometheus.GaugeValue, plain, nil})
	}
	gauge(gpu.Utilization, "gpuready_gpu_utilization_ratio", "Share of the time in which a kernel ran on the GPU, 0 to 1.", percent)
	gauge(gpu.MemoryUtilization, "gpuready_gpu_memory_utilization_ratio", "Share of the time in which the GPU's memory was read or written, 0 to 1.", percent)
	memory(gpu.MemorySize, "gpuready_gpu_memory_size_bytes", "gpuready_gpu_mig_memory_size_bytes", "Size of the memory of the %s.")
	memory(gpu.MemoryReserved, "gpuready_gpu_memory_reserved_bytes", "gpuready_gpu_mig_memory_reserved_bytes", "Memory of the %s that the driver has set aside.")
	memory(gpu.MemoryUsed, "gpuready_gpu_memory_used_bytes", "gpuready_gpu_mig_memory_used_bytes", "Memory of the %s in use; with drivers before R510 also what is reserved.")
	memory(gpu.MemoryFree, "gpuready_gpu_memory_free_bytes", "gpuready_gpu_mig_memory_free_bytes", "Memory of the %s that can be allocated.")
	gauge(gpu.Temperature, "gpuready_gpu_temperature_celsius", "Temperature of the GPU.", plain)
	gauge(gpu.Power, "gpuready_gpu_power_watts", "Power that the board draws.", milli)
	gauge(gpu.PowerLimit, "gpuready_gpu_power_limit_watts", "Power that the board may draw.", milli)
	gauge(gpu.SMClock, "gpuready_gpu_sm_clock_hertz", "Clock of the GPU's multiprocessors.", mega)
	gauge(gpu.MemoryClock, "gpuready_gpu_memory_clock_hertz", "Clock of the GPU's memory.", mega)

	ecc := desc("gpuready_gpu_ecc_errors_total", "Memory errors that ECC found: corrected or uncorrected; volatile since the driver last initialised the GPU, aggregate over its lifetime.", "error", "counter")
	d.gpu = append(d.gpu,
		metric{gpu.ECCVolatileCorrected, ecc, prometheus.CounterValue, plain, []string{"corrected", "volatile"}},
		metric{gpu.ECCVolatileUncorrected, ecc, prometheus.CounterValue, plain, []string{"uncorrected", "volatile"}},
		metric{gpu.ECCAggregateCorrected, ecc, prometheus.CounterValue, plain, []string{"corrected", "aggregate"}},
		metric{gpu.ECCAggregateUncorrected, ecc, prometheus.CounterValue, plain, []string{"uncorrected", "aggregate"}},
	)
	rows := desc("gpuready_gpu_remapped_rows", "Rows of memory that spare rows have replaced, by the kind of error that was the cause.", "error")
	d.gpu = append(d.gpu,
		metric{gpu.RemappedRowsCorrected, rows, prometheus.GaugeValue, plain, []string{"corrected"}},
		metric{gpu.RemappedRowsUncorrected, rows, prometheus.GaugeValue, plain, []string{"uncorrected"}},
	)
	d.xidCount = desc("gpuready_gpu_xids_total", "XIDs of the GPU since this process started, whatever their effect on its health.")
	d.lastXID = desc("gpuready_gpu_last_xid", "Number of the last XID of the GPU since this process started.")
	d.podInfo = prometheus.NewDesc("gpuready_gpu_pod_info", "1 for each container that was allocated the GPU or MIG device, or a share of it.", []string{"gpu", "uuid", "pod_namespace", "pod_name", "container_name"}, nil)
	d.podsKnown = prometheus.NewDesc("gpuready_gpu_pods_known", "1 if the kubelet reported which containers hold GPUs, 0 if it could not be asked.", nil, nil)
	return d
})

// send sends all descriptions. Prometheus accepts duplicates.
func (d descriptions) send(all chan<- *prometheus.Desc) {
	for _, m := range append(slices.Clip(d.gpu), d.mig...) {
		all <- m.desc
	}
	for _, one := range []*prometheus.Desc{d.xidCount, d.lastXID, d.podInfo, d.podsKnown} {
		all <- one
	}
}

// send sends the series of a device.
func (d deviceSample) send(metrics chan<- prometheus.Metric) {
	names := describe()
	labels, list := []string{strconv.Itoa(d.Index), validUTF8(string(d.id())), validUTF8(d.Product)}, names.gpu
	if d.mig != nil {
		labels, list = append(labels, validUTF8(d.mig.Profile), strconv.Itoa(d.mig.GPUInstance), strconv.Itoa(d.mig.ComputeInstance)), names.mig
	}
	for _, m := range list {
		if value, known := d.values[m.quantity]; known {
			metrics <- prometheus.MustNewConstMetric(m.desc, m.kind, m.convert(value), append(slices.Clip(labels), m.values...)...)
		}
	}
	for _, h := range d.holders {
		metrics <- prometheus.MustNewConstMetric(names.podInfo, prometheus.GaugeValue, 1, labels[0], labels[1], h.namespace, h.pod, h.container)
	}
	if d.mig != nil || d.HasNote(gpu.NoteNoXIDs) {
		return
	}
	metrics <- prometheus.MustNewConstMetric(names.xidCount, prometheus.CounterValue, float64(d.xids.count), labels...)
	if d.xids.count > 0 {
		metrics <- prometheus.MustNewConstMetric(names.lastXID, prometheus.GaugeValue, float64(d.xids.last), labels...)
	}
}
