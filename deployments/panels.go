// The panels of the dashboard: those of GPUs and pods.

package deployments

import "fmt"

// Units of Grafana.
const (
	count  = "short"
	number = "none" // such as that of an XID
	ratio  = "percentunit"
)

const (
	plugin     = "gpuready_deviceplugin_"
	reconciler = "gpuready_operator_"
	ofGPU      = "{{node}} GPU {{gpu}}"
	ofMIG      = "{{node}} GPU {{gpu}} {{profile}} {{gpu_instance}}.{{compute_instance}}"
	ofPod      = "{{pod_namespace}}/{{pod_name}} GPU {{gpu}}"
)

// Pairs of colours, see panel.colors.
var (
	always  = [2]string{"green", "green"}
	warning = [2]string{"green", "orange"}
	alarm   = [2]string{"green", "red"}
	wanted  = [2]string{"red", "green"}
	neutral = [2]string{"#3d4048", "blue"}
)

// of restricts a metric of the device plugin to the chosen nodes.
func of(name string) string { return onNode(plugin+name, "") }

// onNode restricts a metric to the chosen nodes; matchers, which may be "", select some of its series.
func onNode(name, matchers string) string {
	if matchers != "" {
		matchers = "," + matchers
	}
	return name + `{node=~"$node"` + matchers + "}"
}

// distinct returns one series for each value of the labels. Where a new pod of a program has followed
// another one, the series goes on.
func distinct(labels, expr string) string { return "max by (" + labels + ") (" + expr + ")" }

// gauge returns a value of each GPU.
func gauge(name string) string { return distinct("node, gpu", onNode(name, "")) }

// gaugeMIG returns a value of each MIG device.
func gaugeMIG(name string) string {
	return distinct("node, gpu, profile, gpu_instance, compute_instance", onNode(name, ""))
}

// byPod returns a series of each pod and device that it holds, with a value of the device.
func byPod(value string) string {
	return distinct("node, gpu, uuid, pod_namespace, pod_name", onNode("gpuready_gpu_pod_info", "")) +
		" * on (node, uuid) group_left () " + distinct("node, uuid", value)
}

// shorten cuts the UUIDs in a label down to their first part, "GPU-8d440c5a".
func shorten(label, expr string) string { return replace(label, "([A-Z]+-[0-9a-f]{8}).*", expr) }

// replace replaces a label by the first group of a pattern, where that matches.
func replace(label, pattern, expr string) string {
	return fmt.Sprintf(`label_replace(%s, %q, "$1", %q, %q)`, expr, label, label, pattern)
}

// events returns how often something happened. Some counters appear with their first event, which increase
// does not count.
func events(by, counter string) string {
	return "sum by (" + by + ") ((" + counter + " unless " + counter + " offset $__rate_interval) or " + increase(counter) + ")"
}

func increase(counter string) string { return "increase(" + counter + "[$__rate_interval])" }

// quantile returns a quantile of the durations that a histogram counts.
func quantile(q, by, histogram string) string {
	return "histogram_quantile(" + q + ", sum by (le, " + by + ") (rate(" + histogram + "[$__rate_interval])))"
}

// ofProcess restricts a value of processes to those of gpuready.
func ofProcess(value string) string {
	return "max by (node, container) (" + value + " * on (namespace, pod, container) group_left () gpuready_build_info)"
}

// Columns that several tables have.
var (
	nodeColumn   = column{"node", "Node", 130}
	reasonColumn = column{"reason", "Reason", 0}
)

// sections returns the rows of the dashboard.
func sections() []section {
	return []section{
		{"Devices", 7, deviceSection()},
		{"GPUs: utilisation and memory", 8, utilisationSection()},
		{"GPUs: temperature, power and clocks", 8, powerSection()},
		{"GPUs: memory errors and XIDs", 8, memorySection()},
		{"MIG devices", 7, migSection()},
		{"Pods", 8, podSection()},
		{"Errors", 7, errorSection()},
		{"Allocation", 7, allocationSection()},
		{"ResourceClaims", 7, claimSection()},
		{"Kubelet and configuration", 7, kubeletSection()},
		{"Toolkit and validator", 7, nodeSection()},
		{"Operator", 7, operatorSection()},
		{"Processes", 8, processSection()},
	}
}

func deviceSection() []panel {
	return []panel{
		{
			title: "Healthy", about: "Devices that can be allocated to containers, each replica counted.",
			kind: stat, unit: count, width: 4, colors: always, expr: "sum(" + onNode(plugin+"devices", `state="Healthy"`) + ")",
		},
		{
			title: "Unhealthy", about: "Devices that are not allocated until they recover.",
			kind: stat, unit: count, width: 4, colors: alarm, expr: "sum(" + onNode(plugin+"devices", `state="Unhealthy"`) + ") or vector(0)",
		},
		{
			title: "Left out", about: "GPUs and MIG devices that are not advertised, by reason.",
			kind: stat, unit: count, width: 4, colors: warning, legend: "{{reason}}",
			expr: "sum by (reason) (" + of("devices_left_out") + ") > 0 or on () vector(0)",
		},
		{
			title: "Phase of the plugin", about: "Ready, Waiting, Degraded or Failed, with the reason.",
			kind: table, unit: count, width: 12, expr: distinct("node, phase, reason", of("phase")+" == 1"),
			columns: []column{nodeColumn, {"phase", "Phase", 130}, reasonColumn},
		},
		{
			title: "Unhealthy devices",
			kind:  table, unit: count, width: 12, expr: distinct("node, resource, reason, device", of("device_healthy")+" == 0"),
			columns: []column{nodeColumn, {"resource", "Resource", 150}, {"reason", "Reason", 110}, {"device", "Device", 0}},
		},
		{
			title: "Devices by state",
			kind:  stack, unit: count, width: 12, legend: "{{resource}} {{state}} {{reason}}",
			expr: "sum by (resource, state, reason) (" + of("devices") + ")",
		},
	}
}

func utilisationSection() []panel {
	const used, size = "gpuready_gpu_memory_used_bytes", "gpuready_gpu_memory_size_bytes"
	return []panel{
		{
			title: "Utilisation", about: "Share of the time in which a kernel ran. None for a GPU in MIG mode.",
			unit: ratio, width: 8, expr: gauge("gpuready_gpu_utilization_ratio"), legend: ofGPU,
		},
		{
			title: "Memory utilisation", about: "Share of the time in which memory was read or written.",
			unit: ratio, width: 8, expr: gauge("gpuready_gpu_memory_utilization_ratio"), legend: ofGPU,
		},
		{title: "Memory in use", unit: "bytes", width: 8, expr: gauge(used), legend: ofGPU},
		{
			title: "Mean utilisation by model",
			unit:  ratio, width: 8, expr: "avg by (model) (" + onNode("gpuready_gpu_utilization_ratio", "") + ")", legend: "{{model}}",
		},
		{title: "Share of memory in use", unit: ratio, width: 8, expr: gauge(used) + " / " + gauge(size), legend: ofGPU},
		{title: "Free memory", unit: "bytes", width: 8, expr: gauge("gpuready_gpu_memory_free_bytes"), legend: ofGPU},
	}
}

func powerSection() []panel {
	power := gauge("gpuready_gpu_power_watts")
	return []panel{
		{title: "Temperature", unit: "celsius", width: 8, expr: gauge("gpuready_gpu_temperature_celsius"), legend: ofGPU},
		{title: "Power", unit: "watt", width: 8, expr: power, legend: ofGPU},
		{title: "Share of the power limit", unit: ratio, width: 8, expr: power + " / " + gauge("gpuready_gpu_power_limit_watts"), legend: ofGPU},
		{title: "Clock of the multiprocessors", unit: "hertz", width: 8, expr: gauge("gpuready_gpu_sm_clock_hertz"), legend: ofGPU},
		{title: "Clock of the memory", unit: "hertz", width: 8, expr: gauge("gpuready_gpu_memory_clock_hertz"), legend: ofGPU},
		{
			title: "Power of each node", about: "Of its GPUs' boards.",
			unit: "watt", width: 8, expr: "sum by (node) (" + power + ")", legend: "{{node}}",
		},
	}
}

func memorySection() []panel {
	ecc := func(kind, counter string) string {
		return onNode("gpuready_gpu_ecc_errors_total", `error="`+kind+`",counter="`+counter+`"`)
	}
	return []panel{
		{
			title: "Uncorrected ECC errors", about: "New ones.",
			unit: count, width: 8, expr: "sum by (node, gpu) (" + increase(ecc("uncorrected", "volatile")) + ")", legend: ofGPU,
		},
		{
			title: "Corrected ECC errors", about: "New ones.",
			unit: count, width: 8, expr: "sum by (node, gpu) (" + increase(ecc("corrected", "volatile")) + ")", legend: ofGPU,
		},
		{
			title: "New XIDs", about: "Whatever their effect on the GPU's health.",
			unit: count, width: 8, expr: "sum by (node, gpu) (" + increase(onNode("gpuready_gpu_xids_total", "")) + ")", legend: ofGPU,
		},
		{
			title: "Uncorrected ECC errors in the lifetime of GPUs", about: "GPUs that have had any.",
			unit: count, width: 8, expr: distinct("node, gpu", ecc("uncorrected", "aggregate")) + " > 0", legend: ofGPU,
		},
		{
			title: "Remapped rows", about: "Rows of memory that spare rows have replaced, of GPUs that have had any.",
			unit: count, width: 8, legend: ofGPU + " {{error}}",
			expr: distinct("node, gpu, error", onNode("gpuready_gpu_remapped_rows", "")) + " > 0",
		},
		{
			title: "Last XID", about: "Since the plugin started; docs/reasons.md explains the number.",
			unit: number, width: 8, expr: gauge("gpuready_gpu_last_xid"), legend: ofGPU,
		},
	}
}

func migSection() []panel {
	const used, size = "gpuready_gpu_mig_memory_used_bytes", "gpuready_gpu_mig_memory_size_bytes"
	return []panel{
		{
			title: "Memory in use by MIG devices", about: "The compute instances of one GPU instance share its memory.",
			unit: "bytes", width: 8, expr: gaugeMIG(used), legend: ofMIG,
		},
		{title: "Share of memory in use by MIG devices", unit: ratio, width: 8, expr: gaugeMIG(used) + " / " + gaugeMIG(size), legend: ofMIG},
		{
			title: "MIG devices by profile",
			kind:  stack, unit: count, width: 8, expr: "count by (profile) (" + gaugeMIG(size) + ")", legend: "{{profile}}",
		},
	}
}

func podSection() []panel {
	value := func(name string) string { return byPod(onNode(name, "")) }
	namespace, pod := column{"pod_namespace", "Namespace", 105}, column{"pod_name", "Pod", 0}
	node, gpu, device := column{"node", "Node", 110}, column{"gpu", "GPU", 50}, column{"uuid", "Device", 110}
	return []panel{
		{
			title: "Utilisation of the GPUs of each pod", about: "That of the whole GPU: pods that share one see the same value.",
			unit: ratio, width: 12, expr: value("gpuready_gpu_utilization_ratio"), legend: ofPod,
		},
		{
			title: "Memory in use on the GPUs and MIG devices of each pod", about: "That of the whole device.",
			unit: "bytes", width: 12, legend: ofPod,
			expr: byPod(onNode("gpuready_gpu_memory_used_bytes", "") + " or " + onNode("gpuready_gpu_mig_memory_used_bytes", "")),
		},
		{
			title: "Power of the GPUs of each pod", about: "That of the whole GPU.",
			unit: "watt", width: 12, expr: value("gpuready_gpu_power_watts"), legend: ofPod,
		},
		{
			title: "Temperature of the GPUs of each pod",
			unit:  "celsius", width: 12, expr: value("gpuready_gpu_temperature_celsius"), legend: ofPod,
		},
		{
			title: "New XIDs on the GPUs of each pod",
			unit:  count, width: 12, expr: byPod("sum by (node, uuid) (" + increase(onNode("gpuready_gpu_xids_total", "")) + ")"), legend: ofPod,
		},
		{
			title: "Devices of each namespace", about: "GPUs and MIG devices, shared ones once for each pod.",
			kind: stack, unit: count, width: 12, legend: "{{pod_namespace}}",
			expr: "count by (pod_namespace) (" + distinct("node, uuid, pod_namespace, pod_name", onNode("gpuready_gpu_pod_info", "")) + ")",
		},
		{
			title: "Who holds which GPU",
			kind:  table, unit: count, width: 12,
			expr:    shorten("uuid", distinct("node, gpu, uuid, pod_namespace, pod_name, container_name", onNode("gpuready_gpu_pod_info", ""))),
			columns: []column{namespace, pod, {"container_name", "Container", 90}, node, gpu, device},
		},
		{
			title: "Pods that leave their GPU idle", about: "No kernel ran on it.",
			kind: table, unit: count, width: 12, expr: shorten("uuid", value("gpuready_gpu_utilization_ratio")+" == 0"),
			columns: []column{namespace, pod, node, gpu, device},
		},
	}
}

func errorSection() []panel {
	return []panel{
		{
			title: "XIDs", about: "All XIDs, whatever their effect on the GPU's health.",
			unit: count, width: 8, expr: shorten("gpu", events("node, gpu, xid", of("xids_total"))), legend: "{{node}} {{gpu}} XID {{xid}}",
		},
		{
			title: "NVML errors", about: "HUNG is a call that did not return.",
			unit: count, width: 8, expr: events("node, code", of("nvml_errors_total")), legend: "{{node}} {{code}}",
		},
		{
			title: "Events heard", about: "No on a node with GPUs: their health cannot be watched.",
			kind: states, unit: count, width: 8, colors: wanted, expr: distinct("node", of("watching")), legend: "{{node}}",
		},
	}
}
