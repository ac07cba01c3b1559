// The panels of the agents and of the operator.

package deployments

func allocationSection() []panel {
	const score = "preferred_allocation_score_ratio"
	return []panel{
		{
			title: "Containers", about: "By the response to the kubelet.",
			unit: count, width: 6, expr: events("resource, code", of("allocations_total")), legend: "{{resource}} {{code}}",
		},
		{
			title: "Allocate, p99",
			unit:  "s", width: 6, expr: quantile("0.99", "resource", of("allocation_duration_seconds_bucket")), legend: "{{resource}}",
		},
		{
			title: "Preferred allocation, p99",
			unit:  "s", width: 6, expr: quantile("0.99", "resource", of("preferred_allocation_duration_seconds_bucket")), legend: "{{resource}}",
		},
		{
			title: "Score of preferred allocations", about: "100 %: as near to each other as GPUs of an empty node can be.",
			unit: ratio, width: 6, legend: "{{resource}}",
			expr: events("resource", of(score+"_sum")) + " / " + events("resource", of(score+"_count")) + " > 0",
		},
	}
}

func claimSection() []panel {
	return []panel{
		{
			title: "Devices in ResourceSlices", about: "Of the nodes that serve ResourceClaims; none with the device plugin.",
			kind: stack, unit: count, width: 6, legend: "{{node}} tainted: {{tainted}}",
			expr: "sum by (node, tainted) (" + onNode("gpuready_dra_devices", "") + ") > 0",
		},
		{
			title: "Devices with a taint", about: "Given to no new pod until they recover.",
			kind: stat, unit: count, width: 6, colors: alarm, expr: "sum(" + onNode("gpuready_dra_devices", `tainted="true"`) + ") or vector(0)",
		},
		{
			title: "Claims", about: "By the response to the kubelet.",
			unit: count, width: 6, legend: "{{node}} {{operation}} {{outcome}}",
			expr: "sum by (node, operation, outcome) (" + increase(onNode("gpuready_dra_claims_total", "")) + ")",
		},
		{
			title: "Errors while publishing",
			unit:  count, width: 6, legend: "{{node}}",
			expr: "sum by (node) (" + increase(onNode("gpuready_dra_background_errors_total", "")) + ")",
		},
	}
}

func kubeletSection() []panel {
	return []panel{
		{
			title: "Registered", about: "Whether the kubelet knows the resource by the plugin.",
			kind: states, unit: count, width: 6, colors: wanted, legend: "{{node}} {{resource}}",
			expr: distinct("node, resource", of("registered")),
		},
		{
			title: "Registrations", about: "By the kubelet's response.",
			unit: count, width: 6, expr: events("node, code", of("registrations_total")), legend: "{{node}} {{code}}",
		},
		{
			title: "Configurations", about: "Nodes that should be alike have one hash.",
			kind: table, unit: count, width: 6, expr: distinct("node, name, hash", of("config_info")),
			columns: []column{{"node", "Node", 90}, {"name", "Name", 90}, {"hash", "Hash", 0}},
		},
		{
			title: "Reloads", about: "Of the configuration.",
			unit: count, width: 6, expr: "sum by (node, result) (" + increase(of("config_reloads_total")) + ")", legend: "{{node}} {{result}}",
		},
	}
}

func nodeSection() []panel {
	total := func(by, name, matchers string) string {
		return "sum by (" + by + ") (" + increase(onNode(name, matchers)) + ")"
	}
	return []panel{
		{
			title: "Layers not proven",
			kind:  table, unit: count, width: 12, expr: distinct("node, layer, reason", onNode("gpuready_layer_not_ready_reason", "")+" == 1"),
			columns: []column{nodeColumn, {"layer", "Layer", 130}, reasonColumn},
		},
		{
			title: "Runtime not configured", about: "By reason; RuntimeRestart needs a manual restart.",
			kind: table, unit: count, width: 6, expr: distinct("node, reason", onNode("gpuready_toolkit_runtime_problem", "")+" == 1"),
			columns: []column{nodeColumn, reasonColumn},
		},
		{
			title: "Runtime resolves CDI names",
			kind:  states, unit: count, width: 6, colors: wanted, legend: "{{node}} {{runtime}}",
			expr: distinct("node, runtime", onNode("gpuready_toolkit_runtime_cdi", "")),
		},
		{
			title: "Runtime configuration", about: "undone: the runtime did not accept it and has its old one back.",
			unit: count, width: 6, legend: "{{node}} {{outcome}}",
			expr: total("node, outcome", "gpuready_toolkit_runtime_applies_total", `outcome!="unchanged"`),
		},
		{
			title: "Runtime restarts by the toolkit",
			unit:  count, width: 6, expr: total("node", "gpuready_toolkit_runtime_restarts_total", ""), legend: "{{node}}",
		},
		{
			title: "Repairs", about: "Changes by others that the toolkit reverted.",
			unit: count, width: 6, expr: total("node", "gpuready_toolkit_repairs_total", ""), legend: "{{node}}",
		},
		{
			title: "Age of the CDI specifications", about: "Since the toolkit's process wrote one; no value if it had nothing to write.",
			unit: "s", width: 6, legend: "{{node}}",
			expr: "time() - " + distinct("node", onNode("gpuready_toolkit_cdi_written_timestamp_seconds", "")+" > 0"),
		},
		{
			title: "API server does not listen", about: "Whether the validator's writes fail.",
			kind: states, unit: count, width: 24, colors: alarm, legend: "{{node}} {{what}}",
			expr: distinct("node, what", onNode("gpuready_voice_failing", "")),
		},
	}
}

func operatorSection() []panel {
	const nodes = reconciler + "nodes"
	return []panel{
		{
			title: "Nodes by state", about: "The first state that they have not reached; done: all are reached.",
			kind: stack, unit: count, width: 8, expr: "sum by (state, status) (" + nodes + ")", legend: "{{state}} {{status}}",
		},
		{
			title: "Nodes by pool",
			kind:  table, unit: count, width: 8, expr: "sum by (pool, state, status) (" + nodes + ")",
			columns: []column{{"pool", "Pool", 0}, {"state", "State", 80}, {"status", "Status", 80}, {"Value", "Nodes", 65}},
		},
		{
			title: "Waiting for", about: "How long the longest-waiting node has waited.",
			unit: "s", width: 8, legend: "{{state}} {{status}}",
			expr: "time() - min by (state, status) (" + nodes + "_since_timestamp_seconds)",
		},
		{
			title: "Policy", about: "The conditions of the policy in force.",
			kind: states, unit: count, width: 6, colors: neutral, expr: distinct("type", reconciler+"policy_condition"), legend: "{{type}}",
		},
		{
			title: "Pools without the driver asked for",
			kind:  table, unit: count, width: 6, expr: "sum by (reason) (" + reconciler + "driver_problem_pools) > 0",
			columns: []column{reasonColumn, {"Value", "Pools", 70}},
		},
		{
			title: "Driver upgrade", about: "Nodes by state.",
			kind: stack, unit: count, width: 6, expr: reconciler + "upgrade_nodes", legend: "{{state}}",
		},
		{
			title: "Nodes by how pods get their GPUs", about: "By the device plugin or by ResourceClaims; none without the DRA driver.",
			kind: stack, unit: count, width: 6, expr: reconciler + "serve_nodes", legend: "{{state}}",
		},
		{
			title: "From a node's creation to each step, p99", about: "Nodes that came while the operator ran.",
			unit: "s", width: 8, legend: "{{step}}",
			expr: "histogram_quantile(0.99, sum by (le, step) (" + reconciler + "provisioning_seconds_bucket))",
		},
		{
			title: "Passes",
			unit:  count, width: 8, legend: "{{about}} {{outcome}}",
			expr: "sum by (about, outcome) (" + increase(reconciler+"reconciles_total") + ")",
		},
		{title: "A pass, p99", unit: "s", width: 8, expr: quantile("0.99", "about", reconciler+"reconcile_seconds_bucket"), legend: "{{about}}"},
		{
			title: "Writes to the API server", about: "While nothing changes, only updates of the Lease.",
			unit: count, width: 16, legend: "{{verb}} {{resource}} {{outcome}}",
			expr: events("verb, resource, outcome", reconciler+"api_writes_total"),
		},
		{
			title: "Answers of registries", about: "What they said of driver images.",
			unit: count, width: 8, expr: events("answer", reconciler+"registry_answers_total"), legend: "{{answer}}",
		},
	}
}

func processSection() []panel {
	const ofContainer = "{{node}} {{container}}"
	return []panel{
		{title: "Memory", unit: "bytes", width: 8, expr: ofProcess(onNode("process_resident_memory_bytes", "")), legend: ofContainer},
		{
			title: "CPU", about: "100 % is one core.",
			unit: ratio, width: 8, expr: ofProcess("rate(" + onNode("process_cpu_seconds_total", "") + "[$__rate_interval])"), legend: ofContainer,
		},
		{
			title: "Versions", about: "Of the programs, without their commits.",
			kind: table, unit: count, width: 8,
			expr:    "count by (container, version) (" + replace("version", "([^ ]+).*", onNode("gpuready_build_info", "")) + ")",
			columns: []column{{"container", "Program", 0}, {"version", "Version", 110}, {"Value", "Processes", 95}},
		},
	}
}
