package main

// descriptor describes a field for a console's form.
type descriptor struct{ path, name, about, control string }

const (
	control = "urn:alm:descriptor:com.tectonic.ui:"
	toggle  = control + "booleanSwitch"
	text    = control + "text"
	number  = control + "number"
)

var fields = []descriptor{
	{"driver.enabled", "Driver", "Install a driver on the nodes that have none.", toggle},
	{"driver.usePrecompiled", "Use precompiled drivers", "A driver image for each kernel; needs repository, image and version. Nothing is built on a node.", toggle},
	{"driver.repository", "Driver repository", "Registry and path of driver images.", text},
	{"driver.image", "Driver image", "Name of driver images.", text},
	{"driver.version", "Driver version", "Version of the driver, or its branch if it is precompiled.", text},
	{"driver.precompiledFallback", "Where there is no precompiled driver", "DriverToolkit: build it on the node. Otherwise the nodes keep the running driver.", text},
	{"driver.upgradePolicy.autoUpgrade", "Upgrade drivers", "Roll out changed drivers automatically.", toggle},
	{"driver.upgradePolicy.maxParallelUpgrades", "Nodes at once", "How many nodes have their driver upgraded at once; 0: no limit.", number},
	{"driver.upgradePolicy.maxUnavailable", "Unavailable nodes", "How many nodes may be unavailable meanwhile: a number or a percentage.", text},
	{"driver.upgradePolicy.drain.enable", "Drain nodes", "Evict all pods of a node, not only those with GPUs.", toggle},
	{"driver.simulated.enabled", "Simulated driver", "For clusters without GPUs.", toggle},
	{"toolkit.enabled", "Container toolkit", "Enable the container runtime to give GPUs to containers.", toggle},
	{"devicePlugin.enabled", "Device plugin", "Advertise GPUs to the kubelet.", toggle},
	{"devicePlugin.config.name", "Device plugin configuration", "ConfigMap with configurations, by name.", "urn:alm:descriptor:io.kubernetes:ConfigMap"},
	{"draDriver.enabled", "DRA driver", "Publish the GPUs as ResourceSlices; Kubernetes 1.34 or newer.", toggle},
	{"draDriver.serve", "How pods get GPUs", "plugin: as resources of the device plugin. dra: by ResourceClaims.", text},
	{"gfd.enabled", "Feature labels", "Label nodes by the features of their GPUs.", toggle},
	{"mig.strategy", "MIG strategy", "How MIG instances are named: none, single or mixed.", text},
	{"migManager.enabled", "MIG manager", "NVIDIA's: maintain the MIG layout that a Node's label names.", toggle},
	{"dcgm.enabled", "DCGM", "NVIDIA's: a host engine on each node.", toggle},
	{"dcgmExporter.enabled", "DCGM exporter", "NVIDIA's: the GPUs' metrics.", toggle},
	{"node.startupTaint.manage", "Startup taint", "Restore the startup taint of a node on which a layer is no longer proven.", toggle},
}

// owned describes the resource.
func owned() object {
	var spec []any
	for _, f := range fields {
		spec = append(spec, object{"path": f.path, "displayName": f.name, "description": f.about, "x-descriptors": []string{f.control}})
	}
	return object{
		"name": "clusterpolicies.nvidia.com", "kind": "ClusterPolicy", "version": "v1",
		"displayName": "ClusterPolicy", "description": "The GPU stack of the cluster.",
		"resources": []any{
			object{"kind": "DaemonSet", "version": "v1", "name": ""},
			object{"kind": "Pod", "version": "v1", "name": ""},
		},
		"specDescriptors": spec,
		"statusDescriptors": []any{
			object{"path": "state", "displayName": "State", "description": "ready, notReady, ignored or disabled.", "x-descriptors": []string{text}},
			object{"path": "conditions", "displayName": "Conditions", "description": "Ready, Progressing and Degraded, and why.", "x-descriptors": []string{"urn:alm:descriptor:io.kubernetes.conditions"}},
		},
	}
}

// ownedDriver describes the resource of drivers for some of the nodes.
func ownedDriver() object {
	return object{
		"name": "nvidiadrivers.nvidia.com", "kind": "NVIDIADriver", "version": "v1alpha1",
		"displayName": "NVIDIADriver", "description": "The driver of the nodes that it selects, if the ClusterPolicy sets driver.useNvidiaDriverCRD.",
		"resources": []any{object{"kind": "DaemonSet", "version": "v1", "name": ""}},
		"specDescriptors": []any{
			object{"path": "default", "displayName": "Default", "description": "For the nodes that no other NVIDIADriver selects.", "x-descriptors": []string{toggle}},
			object{"path": "repository", "displayName": "Driver repository", "description": "Registry and path of driver images.", "x-descriptors": []string{text}},
			object{"path": "image", "displayName": "Driver image", "description": "Name of driver images.", "x-descriptors": []string{text}},
			object{"path": "version", "displayName": "Driver version", "description": "Version of the driver, or its branch if it is precompiled.", "x-descriptors": []string{text}},
		},
		"statusDescriptors": []any{
			object{"path": "state", "displayName": "State", "description": "ready, notReady or disabled.", "x-descriptors": []string{text}},
			object{"path": "conditions", "displayName": "Conditions", "description": "Ready, Degraded and Unserved, and why.", "x-descriptors": []string{"urn:alm:descriptor:io.kubernetes.conditions"}},
		},
	}
}
