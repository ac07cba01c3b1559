package telemetry

import (
	"fmt"
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

// DCGM is a release of NVIDIA's dcgm-exporter, whose names and units are served; "": none.
type DCGM string

// The releases whose names and units differ.
const (
	DCGM48 DCGM = "4.8" // 4.6.0-4.8.3
	DCGM49 DCGM = "4.9" // 4.7.0-4.9.0: base units
)

// Set implements pflag.Value. What was a switch before there were two releases is one still.
func (d *DCGM) Set(value string) error {
	switch value {
	case "true", string(DCGM48):
		*d = DCGM48
	case string(DCGM49):
		*d = DCGM49
	case "false", "":
		*d = ""
	default:
		return fmt.Errorf("%q is neither %s nor %s", value, DCGM48, DCGM49)
	}
	return nil
}

// String implements pflag.Value.
func (d *DCGM) String() string { return string(*d) }

// Type implements pflag.Value.
func (d *DCGM) Type() string { return "release" }

// dcgmDescriptions describes the metrics of NVIDIA's dcgm-exporter that have the same meaning as one
// of ours, in dcgm-exporter's units.
type dcgmDescriptions struct {
	metrics []metric
	lastXID *prometheus.Desc // 0 without any
}

// describeDCGM has the descriptions of each release. Names, types and units are those of
// etc/default-counters.csv in github.com/NVIDIA/dcgm-exporter; the help texts are ours. Release 4.9 has the names
// of DCGM 4.7's fields, which keep the number of the old one where the unit is the same, and have one above 1600
// where it is not.
var describeDCGM = map[DCGM]func() dcgmDescriptions{
	DCGM48: sync.OnceValue(func() dcgmDescriptions {
		return newDCGMDescriptions("XID_ERRORS",
			dcgmGauge(gpu.SMClock, "SM_CLOCK", "The clock of the streaming multiprocessors, in MHz.", plain),
			dcgmGauge(gpu.MemoryClock, "MEM_CLOCK", "The clock of the memory, in MHz.", plain),
			dcgmGauge(gpu.Temperature, "GPU_TEMP", "Temperature of the GPU, in °C.", plain),
			dcgmGauge(gpu.Power, "POWER_USAGE", "Power that the GPU takes, in W.", milli),
			dcgmGauge(gpu.Utilization, "GPU_UTIL", "Share of the last sample period in which a kernel ran, in %.", plain),
			dcgmGauge(gpu.MemoryUtilization, "MEM_COPY_UTIL", "Share of the last sample period in which the memory was read or written, in %.", plain),
			dcgmGauge(gpu.MemoryFree, "FB_FREE", "Memory that nobody uses, in MiB.", mebibytes),
			dcgmGauge(gpu.MemoryUsed, "FB_USED", "Memory in use, in MiB.", mebibytes),
			dcgmCounter(gpu.RemappedRowsCorrected, "CORRECTABLE_REMAPPED_ROWS", rowsCorrected),
			dcgmCounter(gpu.RemappedRowsUncorrected, "UNCORRECTABLE_REMAPPED_ROWS", rowsUncorrected),
		)
	}),
	DCGM49: sync.OnceValue(func() dcgmDescriptions {
		return newDCGMDescriptions("XID_ERROR",
			dcgmGauge(gpu.SMClock, "SM_CLOCK_HERTZ", "The clock of the streaming multiprocessors.", mega),
			dcgmGauge(gpu.MemoryClock, "MEMORY_CLOCK_HERTZ", "The clock of the memory.", mega),
			dcgmGauge(gpu.Temperature, "GPU_TEMP_CELSIUS", "Temperature of the GPU.", plain),
			dcgmGauge(gpu.Power, "BOARD_POWER_WATTS", "Power that the GPU takes.", milli),
			dcgmGauge(gpu.Utilization, "GPU_UTIL_RATIO", "Share of the last sample period in which a kernel ran.", percent),
			dcgmGauge(gpu.MemoryUtilization, "MEMORY_UTIL_RATIO", "Share of the last sample period in which the memory was read or written.", percent),
			dcgmGauge(gpu.MemoryFree, "FB_FREE_BYTES", "Memory that nobody uses.", plain),
			dcgmGauge(gpu.MemoryUsed, "FB_USED_BYTES", "Memory in use.", plain),
			dcgmCounter(gpu.RemappedRowsCorrected, "ROW_REMAP_CORRECTABLE_TOTAL", rowsCorrected),
			dcgmCounter(gpu.RemappedRowsUncorrected, "ROW_REMAP_UNCORRECTABLE_TOTAL", rowsUncorrected),
		)
	}),
}

const (
	rowsCorrected   = "Rows of the memory replaced after errors that ECC had corrected."
	rowsUncorrected = "Rows of the memory replaced after errors that ECC could not correct."
)

func newDCGMDescriptions(lastXID string, metrics ...metric) dcgmDescriptions {
	return dcgmDescriptions{lastXID: dcgmDesc(lastXID, "The newest XID since the plugin started; 0: none."), metrics: append(metrics,
		dcgmCounter(gpu.ECCVolatileCorrected, "ECC_SBE_VOL_TOTAL", "Errors that ECC has corrected since the driver was loaded."),
		dcgmCounter(gpu.ECCVolatileUncorrected, "ECC_DBE_VOL_TOTAL", "Errors that ECC could not correct since the driver was loaded."),
		dcgmCounter(gpu.ECCAggregateCorrected, "ECC_SBE_AGG_TOTAL", "Errors that ECC has corrected in the life of the GPU."),
		dcgmCounter(gpu.ECCAggregateUncorrected, "ECC_DBE_AGG_TOTAL", "Errors that ECC could not correct in the life of the GPU."),
	)}
}

func dcgmDesc(field, help string) *prometheus.Desc {
	return prometheus.NewDesc("DCGM_FI_DEV_"+field, help, dcgmLabels, nil)
}

func dcgmGauge(q gpu.Quantity, field, help string, convert func(uint64) float64) metric {
	return metric{q, dcgmDesc(field, help), prometheus.GaugeValue, convert, nil}
}

func dcgmCounter(q gpu.Quantity, field, help string) metric {
	return metric{q, dcgmDesc(field, help), prometheus.CounterValue, plain, nil}
}

func mebibytes(v uint64) float64 { return float64(v >> 20) }

func (d dcgmDescriptions) send(all chan<- *prometheus.Desc) {
	for _, m := range d.metrics {
		all <- m.desc
	}
	all <- d.lastXID
}

// sendDCGM sends the series of the devices under dcgm-exporter's names: one set for each GPU, and
// one for each GPU instance, whose compute instances share its memory.
func sendDCGM(metrics chan<- prometheus.Metric, devices []deviceSample, names dcgmDescriptions, hostname string) {
	for i, d := range devices {
		if d.mig == nil {
			d.sendDCGM(metrics, names, hostname, "", "")
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
		d.sendDCGM(metrics, names, hostname, profile, strconv.Itoa(d.mig.GPUInstance))
	}
}

// sendDCGM sends the series of a GPU or GPU instance. The labels of a container are set if it is the
// only holder; gpuready_gpu_pod_info lists several.
func (d deviceSample) sendDCGM(metrics chan<- prometheus.Metric, names dcgmDescriptions, hostname, profile, instance string) {
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
	for _, m := range names.metrics {
		if value, known := d.values[m.quantity]; known {
			metrics <- prometheus.MustNewConstMetric(m.desc, m.kind, m.convert(value), labels...)
		}
	}
	if d.mig == nil && !d.HasNote(gpu.NoteNoXIDs) {
		metrics <- prometheus.MustNewConstMetric(names.lastXID, prometheus.GaugeValue, float64(d.xids.last), labels...)
	}
}
