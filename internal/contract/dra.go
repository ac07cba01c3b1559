package contract

// draReasons are the reasons of gpu-dra-driver.
var draReasons = []group{
	{by: DRADriver, rows: []Reason{
		{
			Reason:  "DevicePluginSilent",
			Meaning: "the device plugin's process has ended, or has not read the GPUs yet; the message says which",
			Next:    "see that gpu-device-plugin runs on this node, and its log",
		},
		{
			Reason:  "InventoryUnknown",
			Meaning: "the device plugin has written no state in this boot",
			Next:    "see that gpu-device-plugin runs on this node",
		},
		{
			Reason:  "InventoryInvalid",
			Meaning: "the device plugin's state cannot be read",
			Next:    "see that gpu-device-plugin runs on this node, and its log",
		},
		{
			Reason:  "ServedByDevicePlugin",
			Meaning: "the device plugin registers the GPUs with the kubelet",
			Next:    "label the node `nvidia.com/gpu.serve=dra`, or start gpu-device-plugin with `--serve=dra`",
		},
		{
			Reason:  "Starting",
			Meaning: "the driver waits for the device plugin, the API server or the kubelet; the message says which",
			Next:    "wait for it",
		},
		{
			Reason: "HeldByClaim",
			Meaning: "on the way to `plugin`: the claim that the message names has the GPU, so that the device plugin does not offer " +
				"it yet",
			Next: "wait for the end of the claim's pods, or delete them",
		},
		{
			Reason: "ClaimsOnTheWay",
			Meaning: "on the way to `plugin`: the ResourceSlices are being withdrawn, or were a moment ago. A claim may still be " +
				"prepared",
			Next: "wait a few seconds; the message has the time, or the API server's error",
		},
	}},
}
