// The dashboard for Grafana, monitoring/dashboard.json.

package deployments

import (
	"cmp"
	"encoding/json"
)

// panel is one panel. A table shows the labels of its series, and counts is a table with their values too.
// An alarm is a stat that is red from 1.
type panel struct {
	title, about string
	kind         string // stat, alarm, timeseries, table or counts
	unit         string // Grafana's; "": a number
	width        int    // of 24
	exprs        []string
	legend       string // of a series: "{{node}}"
}

type section struct {
	title  string
	panels []panel
}

const height = 7 // of a panel

const (
	plugin     = "gpuready_deviceplugin_"
	reconciler = "gpuready_operator_"
	ofGPU      = "{{node}} GPU {{gpu}}"
	ofMIG      = "{{node}} GPU {{gpu}} {{profile}} {{gpu_instance}}.{{compute_instance}}"
	ofPod      = "{{pod_namespace}}/{{pod_name}} {{node}} GPU {{gpu}}"
)

// of restricts a metric of the device plugin to the chosen nodes.
func of(name string) string { return plugin + name + `{node=~"$node"}` }

// onNode restricts a metric to the chosen nodes; matchers, which may be "", select some of its series.
func onNode(name, matchers string) string {
	if matchers != "" {
		matchers = "," + matchers
	}
	return name + `{node=~"$node"` + matchers + "}"
}

// gauge is a value of each GPU. Where a new pod of the plugin has followed another one, the series goes on.
func gauge(name string) string { return "max by (node, gpu) (" + onNode(name, "") + ")" }

// gaugeMIG is a value of each MIG device.
func gaugeMIG(name string) string {
	return "max by (node, gpu, profile, gpu_instance, compute_instance) (" + onNode(name, "") + ")"
}

// byPod has a series of each container that holds a device, with a value of the device. Where a new pod of
// the plugin has followed another one, both may have a value.
func byPod(value string) string {
	return onNode("gpuready_gpu_pod_info", "") + " * on (node, uuid) group_left () max by (node, uuid) (" + value + ")"
}

// events returns how often something happened. Some counters appear with their first event, which increase
// does not count.
func events(by, counter string) string {
	return "sum by (" + by + ") ((" + counter + " unless " + counter + " offset $__rate_interval) or increase(" + counter + "[$__rate_interval]))"
}

func quantile(q, name string) string {
	return "histogram_quantile(" + q + ", sum by (le, resource) (rate(" + of(name+"_bucket") + "[$__rate_interval])))"
}

// sections returns the rows of the dashboard.
func sections() []section {
	return []section{
		{"Devices", []panel{
			{"Healthy", "Devices that can be allocated to containers, each replica counted.", "stat", "", 4, []string{`sum(` + plugin + `devices{node=~"$node",state="Healthy"})`}, ""},
			{"Unhealthy", "Devices that are not allocated until they recover.", "alarm", "", 4, []string{`sum(` + plugin + `devices{node=~"$node",state="Unhealthy"}) or vector(0)`}, ""},
			{"Left out", "GPUs and MIG devices that are not advertised.", "stat", "", 4, []string{"sum by (reason) (" + of("devices_left_out") + ")"}, "{{reason}}"},
			{"Phase of the plugin", "Ready, Waiting, Degraded or Failed, with the reason.", "table", "", 12, []string{of("phase") + " == 1"}, ""},
			{"Unhealthy devices", "", "table", "", 12, []string{of("device_healthy") + " == 0"}, ""},
			{"Devices by state", "", "timeseries", "", 12, []string{"sum by (resource, state, reason) (" + of("devices") + ")"}, "{{resource}} {{state}} {{reason}}"},
		}},
		{"GPUs: utilisation and memory", []panel{
			{"Utilisation", "Share of the time in which a kernel ran. None for a GPU in MIG mode.", "timeseries", "percentunit", 8, []string{gauge("gpuready_gpu_utilization_ratio")}, ofGPU},
			{"Memory utilisation", "Share of the time in which memory was read or written.", "timeseries", "percentunit", 8, []string{gauge("gpuready_gpu_memory_utilization_ratio")}, ofGPU},
			{"Memory in use", "", "timeseries", "bytes", 8, []string{gauge("gpuready_gpu_memory_used_bytes")}, ofGPU},
			{"Mean utilisation by model", "", "timeseries", "percentunit", 8, []string{"avg by (model) (" + onNode("gpuready_gpu_utilization_ratio", "") + ")"}, "{{model}}"},
			{"Share of memory in use", "", "timeseries", "percentunit", 8, []string{gauge("gpuready_gpu_memory_used_bytes") + " / " + gauge("gpuready_gpu_memory_size_bytes")}, ofGPU},
			{"Free memory", "", "timeseries", "bytes", 8, []string{gauge("gpuready_gpu_memory_free_bytes")}, ofGPU},
		}},
		{"GPUs: temperature, power and clocks", []panel{
			{"Temperature", "", "timeseries", "celsius", 8, []string{gauge("gpuready_gpu_temperature_celsius")}, ofGPU},
			{"Power", "", "timeseries", "watt", 8, []string{gauge("gpuready_gpu_power_watts")}, ofGPU},
			{"Share of the power limit", "", "timeseries", "percentunit", 8, []string{gauge("gpuready_gpu_power_watts") + " / " + gauge("gpuready_gpu_power_limit_watts")}, ofGPU},
			{"Clock of the multiprocessors", "", "timeseries", "hertz", 8, []string{gauge("gpuready_gpu_sm_clock_hertz")}, ofGPU},
			{"Clock of the memory", "", "timeseries", "hertz", 8, []string{gauge("gpuready_gpu_memory_clock_hertz")}, ofGPU},
			{"Power of each node", "Of its GPUs' boards.", "timeseries", "watt", 8, []string{"sum by (node) (" + gauge("gpuready_gpu_power_watts") + ")"}, "{{node}}"},
		}},
		{"GPUs: memory errors and XIDs", []panel{
			{"Uncorrected ECC errors", "New ones.", "timeseries", "", 8, []string{"sum by (node, gpu) (increase(" + onNode("gpuready_gpu_ecc_errors_total", `error="uncorrected",counter="volatile"`) + "[$__rate_interval]))"}, ofGPU},
			{"Corrected ECC errors", "New ones.", "timeseries", "", 8, []string{"sum by (node, gpu) (increase(" + onNode("gpuready_gpu_ecc_errors_total", `error="corrected",counter="volatile"`) + "[$__rate_interval]))"}, ofGPU},
			{"New XIDs", "Whatever their effect on the GPU's health.", "timeseries", "", 8, []string{"sum by (node, gpu) (increase(" + onNode("gpuready_gpu_xids_total", "") + "[$__rate_interval]))"}, ofGPU},
			{"Uncorrected ECC errors in the lifetime of GPUs", "GPUs that have had any.", "timeseries", "", 8, []string{"max by (node, gpu) (" + onNode("gpuready_gpu_ecc_errors_total", `error="uncorrected",counter="aggregate"`) + ") > 0"}, ofGPU},
			{"Remapped rows", "Rows of memory that spare rows have replaced.", "timeseries", "", 8, []string{"max by (node, gpu, error) (" + onNode("gpuready_gpu_remapped_rows", "") + ")"}, ofGPU + " {{error}}"},
			{"Last XID", "Since the plugin started; docs/xids.md explains the number.", "timeseries", "", 8, []string{gauge("gpuready_gpu_last_xid")}, ofGPU},
		}},
		{"MIG devices", []panel{
			{"Memory in use by MIG devices", "The compute instances of one GPU instance share its memory.", "timeseries", "bytes", 8, []string{gaugeMIG("gpuready_gpu_mig_memory_used_bytes")}, ofMIG},
			{"Share of memory in use by MIG devices", "", "timeseries", "percentunit", 8, []string{gaugeMIG("gpuready_gpu_mig_memory_used_bytes") + " / " + gaugeMIG("gpuready_gpu_mig_memory_size_bytes")}, ofMIG},
			{"MIG devices by profile", "", "timeseries", "", 8, []string{"count by (profile) (" + gaugeMIG("gpuready_gpu_mig_memory_size_bytes") + ")"}, "{{profile}}"},
		}},
		{"Pods", []panel{
			{"Utilisation of the GPUs of each pod", "That of the whole GPU: pods that share one see the same value.", "timeseries", "percentunit", 8, []string{byPod(onNode("gpuready_gpu_utilization_ratio", ""))}, ofPod},
			{"Memory in use on the GPUs and MIG devices of each pod", "That of the whole device.", "timeseries", "bytes", 8, []string{
				byPod(onNode("gpuready_gpu_memory_used_bytes", "") + " or " + onNode("gpuready_gpu_mig_memory_used_bytes", "")),
			}, ofPod},
			{"Power of the GPUs of each pod", "That of the whole GPU.", "timeseries", "watt", 8, []string{byPod(onNode("gpuready_gpu_power_watts", ""))}, ofPod},
			{"Temperature of the GPUs of each pod", "", "timeseries", "celsius", 8, []string{byPod(onNode("gpuready_gpu_temperature_celsius", ""))}, ofPod},
			{"New XIDs on the GPUs of each pod", "", "timeseries", "", 8, []string{byPod("sum by (node, uuid) (increase(" + onNode("gpuready_gpu_xids_total", "") + "[$__rate_interval]))")}, ofPod},
			{"Devices of each namespace", "GPUs and MIG devices, shared ones once for each container.", "timeseries", "", 8, []string{"count by (pod_namespace) (" + onNode("gpuready_gpu_pod_info", "") + ")"}, "{{pod_namespace}}"},
			{"Who holds which GPU", "", "table", "", 12, []string{onNode("gpuready_gpu_pod_info", "")}, ""},
			{"Pods that leave their GPU idle", "No kernel ran on it.", "table", "", 12, []string{byPod(onNode("gpuready_gpu_utilization_ratio", "")) + " == 0"}, ""},
		}},
		{"Errors", []panel{
			{"XIDs", "All XIDs, whatever their effect on the GPU's health.", "timeseries", "", 8, []string{events("node, gpu, xid", of("xids_total"))}, "{{node}} {{gpu}} XID {{xid}}"},
			{"NVML errors", "HUNG is a call that did not return.", "timeseries", "", 8, []string{events("node, code", of("nvml_errors_total"))}, "{{node}} {{code}}"},
			{"Events heard", "0 on a node with GPUs: their health cannot be watched.", "timeseries", "", 8, []string{"max by (node) (" + of("watching") + ")"}, "{{node}}"},
		}},
		{"Allocation", []panel{
			{"Containers", "By the response to the kubelet.", "timeseries", "", 6, []string{events("resource, code", of("allocations_total"))}, "{{resource}} {{code}}"},
			{"Allocate, p99", "", "timeseries", "s", 6, []string{quantile("0.99", "allocation_duration_seconds")}, "{{resource}}"},
			{"Preferred allocation, p99", "", "timeseries", "s", 6, []string{quantile("0.99", "preferred_allocation_duration_seconds")}, "{{resource}}"},
			{"Score of preferred allocations", "1: as near to each other as GPUs of an empty node can be.", "timeseries", "percentunit", 6, []string{
				events("resource", of("preferred_allocation_score_ratio_sum")) + " / " + events("resource", of("preferred_allocation_score_ratio_count")) + " > 0",
			}, "{{resource}}"},
		}},
		{"ResourceClaims", []panel{
			{"Devices in ResourceSlices", "Of the nodes that serve ResourceClaims; none with the device plugin.", "timeseries", "", 6, []string{`sum by (node, tainted) (gpuready_dra_devices{node=~"$node"}) > 0`}, "{{node}} tainted: {{tainted}}"},
			{"Devices with a taint", "Given to no new pod until they recover.", "alarm", "", 6, []string{`sum(gpuready_dra_devices{node=~"$node",tainted="true"}) or vector(0)`}, ""},
			{"Claims", "By the response to the kubelet.", "timeseries", "", 6, []string{`sum by (node, operation, outcome) (increase(gpuready_dra_claims_total{node=~"$node"}[$__rate_interval]))`}, "{{node}} {{operation}} {{outcome}}"},
			{"Errors while publishing", "", "timeseries", "", 6, []string{`sum by (node) (increase(gpuready_dra_background_errors_total{node=~"$node"}[$__rate_interval]))`}, "{{node}}"},
		}},
		{"Kubelet and configuration", []panel{
			{"Registered", "", "timeseries", "", 6, []string{"max by (node, resource) (" + of("registered") + ")"}, "{{node}} {{resource}}"},
			{"Registrations", "", "timeseries", "", 6, []string{events("node, code", of("registrations_total"))}, "{{node}} {{code}}"},
			{"Configurations", "Nodes that should be alike have one hash.", "table", "", 6, []string{of("config_info")}, ""},
			{"Reloads", "", "timeseries", "", 6, []string{"sum by (node, result) (increase(" + of("config_reloads_total") + "[$__rate_interval]))"}, "{{node}} {{result}}"},
		}},
		{"Toolkit and validator", []panel{
			{"Layers not proven", "", "table", "", 12, []string{`gpuready_layer_not_ready_reason{node=~"$node"} == 1`}, ""},
			{"Runtime resolves CDI names", "", "timeseries", "", 6, []string{`max by (node, runtime) (gpuready_toolkit_runtime_cdi{node=~"$node"})`}, "{{node}} {{runtime}}"},
			{"Runtime configuration", "undone: the runtime did not accept it and has its old one back.", "timeseries", "", 6, []string{`sum by (node, outcome) (increase(gpuready_toolkit_runtime_applies_total{node=~"$node",outcome!="unchanged"}[$__rate_interval]))`}, "{{node}} {{outcome}}"},
			{"Runtime restarts by the toolkit", "", "timeseries", "", 6, []string{`sum by (node) (increase(gpuready_toolkit_runtime_restarts_total{node=~"$node"}[$__rate_interval]))`}, "{{node}}"},
			{"Repairs", "Changes by others that the toolkit reverted.", "timeseries", "", 6, []string{`sum by (node) (increase(gpuready_toolkit_repairs_total{node=~"$node"}[$__rate_interval]))`}, "{{node}}"},
			{"Age of the CDI specifications", "Since the toolkit's process wrote one; no value if it had nothing to write.", "timeseries", "s", 6, []string{`time() - (gpuready_toolkit_cdi_written_timestamp_seconds{node=~"$node"} > 0)`}, "{{node}}"},
			{"Runtime not configured", "By reason; RuntimeRestart needs a manual restart.", "table", "", 6, []string{`gpuready_toolkit_runtime_problem{node=~"$node"} == 1`}, ""},
			{"API server does not listen", "", "timeseries", "", 6, []string{`max by (node, what) (gpuready_voice_failing{node=~"$node"})`}, "{{node}} {{what}}"},
		}},
		{"Operator", []panel{
			{"Nodes by state", "The first state that they have not reached; done: all are reached.", "timeseries", "", 8, []string{"sum by (state, status) (" + reconciler + "nodes)"}, "{{state}} {{status}}"},
			{"Nodes by pool", "", "counts", "", 8, []string{"sum by (pool, state, status) (" + reconciler + "nodes)"}, ""},
			{"Waiting for", "How long the longest-waiting node of the group has waited.", "timeseries", "s", 8, []string{"time() - " + reconciler + "nodes_since_timestamp_seconds"}, "{{pool}} {{state}} {{status}}"},
			{"Policy", "1 where the condition is True.", "timeseries", "", 6, []string{reconciler + "policy_condition"}, "{{type}}"},
			{"Pools without the driver asked for", "", "counts", "", 6, []string{"sum by (reason) (" + reconciler + "driver_problem_pools)"}, ""},
			{"Driver upgrade", "Nodes by state.", "timeseries", "", 6, []string{reconciler + "upgrade_nodes"}, "{{state}}"},
			{"Nodes by how pods get their GPUs", "By the device plugin or by ResourceClaims; none without the DRA driver.", "timeseries", "", 6, []string{reconciler + "serve_nodes"}, "{{state}}"},
			{"From a node's creation to each step, p99", "Nodes that came while the operator ran.", "timeseries", "s", 6, []string{"histogram_quantile(0.99, sum by (le, step) (" + reconciler + "provisioning_seconds_bucket))"}, "{{step}}"},
			{"Passes", "", "timeseries", "", 6, []string{"sum by (about, outcome) (increase(" + reconciler + "reconciles_total[$__rate_interval]))"}, "{{about}} {{outcome}}"},
			{"A pass, p99", "", "timeseries", "s", 6, []string{"histogram_quantile(0.99, sum by (le, about) (rate(" + reconciler + "reconcile_seconds_bucket[$__rate_interval])))"}, "{{about}}"},
			{"Writes to the API server", "While nothing changes, only updates of the Lease.", "timeseries", "", 6, []string{events("verb, resource, outcome", reconciler+"api_writes_total")}, "{{verb}} {{resource}} {{outcome}}"},
			{"Answers of registries", "", "timeseries", "", 6, []string{events("answer", reconciler+"registry_answers_total")}, "{{answer}}"},
		}},
		{"Processes", []panel{
			{"Memory", "", "timeseries", "bytes", 8, []string{`max by (node, container) (process_resident_memory_bytes{node=~"$node"} * on (namespace, pod, container) group_left () gpuready_build_info)`}, "{{node}} {{container}}"},
			{"CPU", "", "timeseries", "percentunit", 8, []string{`max by (node, container) (rate(process_cpu_seconds_total{node=~"$node"}[$__rate_interval]) * on (namespace, pod, container) group_left () gpuready_build_info)`}, "{{node}} {{container}}"},
			{"Versions", "", "counts", "", 8, []string{`count by (container, version) (gpuready_build_info{node=~"$node"})`}, ""},
		}},
	}
}

type object = map[string]any

var source = object{"type": "prometheus", "uid": "${source}"}

// renderDashboard returns dashboard.json.
func renderDashboard() ([]byte, error) {
	var panels []object
	y, id := 0, 0
	for _, s := range sections() {
		id++
		panels = append(panels, object{"id": id, "type": "row", "title": s.title, "collapsed": false, "panels": []object{}, "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		x := 0
		for _, p := range s.panels {
			id++
			if x+p.width > 24 {
				x, y = 0, y+height
			}
			panels = append(panels, p.render(id, x, y))
			x += p.width
		}
		y += height
	}
	data, err := json.MarshalIndent(object{
		"uid": "gpuready", "title": "gpuready", "tags": []string{"gpu", "kubernetes"}, "schemaVersion": 39, "version": 1, "editable": true,
		"time": object{"from": "now-6h", "to": "now"}, "refresh": "30s", "panels": panels,
		"templating": object{"list": []object{
			{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
			{
				"name": "node", "label": "Node", "type": "query", "datasource": source, "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
				"query": object{"query": "label_values(" + plugin + "phase, node)", "refId": "node"}, "current": object{"text": "All", "value": "$__all"},
			},
		}},
	}, "", "  ")
	return append(data, '\n'), err
}

func (p panel) render(id, x, y int) object {
	kind := cmp.Or(map[string]string{"alarm": "stat", "counts": "table"}[p.kind], p.kind) // Grafana's
	var targets []object
	for i, expr := range p.exprs {
		target := object{"refId": string(rune('A' + i)), "datasource": source, "expr": expr, "legendFormat": p.legend}
		if kind != "timeseries" {
			target["instant"] = true
		}
		if kind == "table" {
			target["format"] = "table"
		}
		targets = append(targets, target)
	}
	defaults := object{"unit": p.unit}
	if p.kind == "alarm" {
		defaults["thresholds"] = object{"mode": "absolute", "steps": []object{{"color": "green", "value": nil}, {"color": "red", "value": 1}}}
	}
	o := object{
		"id": id, "type": kind, "title": p.title, "description": p.about, "datasource": source, "targets": targets,
		"gridPos": object{"x": x, "y": y, "w": p.width, "h": height}, "fieldConfig": object{"defaults": defaults, "overrides": []object{}},
	}
	if kind == "table" { // columns of no interest
		o["transformations"] = []object{{"id": "organize", "options": object{"excludeByName": object{
			"Time": true, "Value": p.kind != "counts", "__name__": true, "container": p.kind != "counts", "endpoint": true, "instance": true, "job": true, "namespace": true, "pod": true,
		}}}}
	}
	return o
}
