package telemetry

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/gpu"
)

// dcgmLabels are the labels of dcgm-exporter since 4.6.0-4.8.3, before which hostname was Hostname. Those from
// GPU_I_PROFILE on are empty where they do not apply, which to Prometheus is the same as none.
var dcgmLabels = []string{"gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "GPU_I_PROFILE", "GPU_I_ID", "container", "namespace", "pod"}

// dcgmDescriptions describes the metrics of NVIDIA's dcgm-exporter that have the same meaning as one
// of ours, in dcgm-exporter's units.
type dcgmDescriptions struct {
	metrics []metric
	lastXID *prometheus.Desc // 0 without any
}

// describeDCGM returns the descriptions. Names, types and units are those of
// etc/default-counters.csv in github.com/NVIDIA/dcgm-exporter; the help texts are ours.
var describeDCGM = sync.OnceValue(func() dcgmDescriptions {
	desc := func(field, help string) *prometheus.Desc {
		return prometheus.NewDesc("DCGM_FI_DEV_"+field, help, dcgmLabels, nil)
	}
	gauge := func(q gpu.Quantity, field, help string, convert func(uint64) float64) metric {
		return metric{q, desc(field, help), prometheus.GaugeValue, convert, nil}
	}
	counter := func(q gpu.Quantity, field, help string) metric {
		return metric{q, desc(field, help), prometheus.CounterValue, plain, nil}
	}
	return dcgmDescriptions{lastXID: desc("XID_ERRORS", "The newest XID since the plugin started; 0: none."), metrics: []metric{
		gauge(gpu.SMClock, "SM_CLOCK", "The clock of the streaming multiprocessors, in MHz.", plain),
		gauge(gpu.MemoryClock, "MEM_CLOCK", "The clock of the memory, in MHz.", plain),
		gauge(gpu.Temperature, "GPU_TEMP", "Temperature of the GPU, in °C.", plain),
		gauge(gpu.Power, "POWER_USAGE", "Power that the GPU takes, in W.", milli),
		gauge(gpu.Utilization, "GPU_UTIL", "Share of the last sample period in which a kernel ran, in %.", plain),
		gauge(gpu.MemoryUtilization, "MEM_COPY_UTIL", "Share of the last sample period in which the memory was read or written, in %.", plain),
		gauge(gpu.MemoryFree, "FB_FREE", "Memory that nobody uses, in MiB.", mebibytes),
		gauge(gpu.MemoryUsed, "FB_USED", "Memory in use, in MiB.", mebibytes),
		counter(gpu.ECCVolatileCorrected, "ECC_SBE_VOL_TOTAL", "Errors that ECC has corrected since the driver was loaded."),
		counter(gpu.ECCVolatileUncorrected, "ECC_DBE_VOL_TOTAL", "Errors that ECC could not correct since the driver was loaded."),
		counter(gpu.ECCAggregateCorrected, "ECC_SBE_AGG_TOTAL", "Errors that ECC has corrected in the life of the GPU."),
		counter(gpu.ECCAggregateUncorrected, "ECC_DBE_AGG_TOTAL", "Errors that ECC could not correct in the life of the GPU."),
		counter(gpu.RemappedRowsCorrected, "CORRECTABLE_REMAPPED_ROWS", "Rows of the memory replaced after errors that ECC had corrected."),
		counter(gpu.RemappedRowsUncorrected, "UNCORRECTABLE_REMAPPED_ROWS",
			"Rows of the memory replaced after errors that ECC could not correct."),
	}}
})

func mebibytes(v uint64) float64 { return float64(v >> 20) }

func (d dcgmDescriptions) send(all chan<- *prometheus.Desc) {
	for _, m := range d.metrics {
		all <- m.desc
	}
	all <- d.lastXID
}

// sendDCGM sends the series of the devices under dcgm-exporter's names: one set for each GPU, and
// one for each GPU instance, whose compute instances share its memory.
func sendDCGM(metrics chan<- prometheus.Metric, devices []deviceSample, hostname string) {
	for i, d := range devices {
		if d.mig == nil {
			d.sendDCGM(metrics, hostname, "", "")
			continue
		}
		sameInstance := func(o deviceSample) bool {
			return o.mig != nil && o.UUID == d.UUID && o.mig.GPUInstance == d.mig.GPUInstance
		}
		if slices.ContainsFunc(devices[:i], sameInstance) {
			continue
		}
		for _, o := range devices[i+1:] {
			if sameInstance(o) {
				d.holders = append(slices.Clone(d.holders), o.holders...)
			}
		}
		profile := d.mig.Profile
		if part, whole, isPart := strings.Cut(profile, "."); isPart && strings.HasSuffix(part, "c") { // "1c.3g.40gb"
			profile = whole
		}
		d.sendDCGM(metrics, hostname, profile, strconv.Itoa(d.mig.GPUInstance))
	}
}

// sendDCGM sends the series of a GPU or GPU instance. The labels of a container are set if it is the
// only holder; gpuready_gpu_pod_info lists several.
func (d deviceSample) sendDCGM(metrics chan<- prometheus.Metric, hostname, profile, instance string) {
	var only holder
	if len(d.holders) == 1 {
		only = d.holders[0]
	}
	var address, node string // "": not known
	if d.PCI != "" {
		address = strings.ToUpper("0000" + string(d.PCI))
	}
	if d.Minor >= 0 {
		node = "nvidia" + strconv.Itoa(d.Minor)
	}
	labels := []string{
		strconv.Itoa(d.Index), validUTF8(string(d.UUID)), address, node,
		validUTF8(d.Product), validUTF8(hostname), validUTF8(profile), instance, only.container, only.namespace, only.pod,
	}
	names := describeDCGM()
	for _, m := range names.metrics {
		if value, known := d.values[m.quantity]; known {
			metrics <- prometheus.MustNewConstMetric(m.desc, m.kind, m.convert(value), labels...)
		}
	}
	if d.mig == nil && !d.HasNote(gpu.NoteNoXIDs) {
		metrics <- prometheus.MustNewConstMetric(names.lastXID, prometheus.GaugeValue, float64(d.xids.last), labels...)
	}
}
