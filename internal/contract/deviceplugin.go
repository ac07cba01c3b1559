package contract

// devicePluginReasons are the reasons of gpu-device-plugin and mps-daemon.
var devicePluginReasons = []group{
	{by: DevicePlugin, of: "a device that is unhealthy", rows: []Reason{
		{
			Reason:  "XID",
			Meaning: "the driver reported an error that counts against the GPU or the MIG instance",
			Next: "look the XID up in docs/reasons.md, under XIDs: it recovers when it is quiet, after a reset, or with a new " +
				"driver",
		},
		{
			Reason:  "ECC",
			Meaning: "an uncorrectable memory error",
			Next:    "reset it when no program uses it (`nvidia-smi --gpu-reset -i UUID`), or reboot the node",
		},
		{
			Reason:  "GPULost",
			Meaning: "the GPU fell off the bus, or NVML cannot reach it",
			Next: "reset it or reboot the node; if the error comes again, have the GPU and its slot, power and cables checked; see " +
				"the kernel log",
		},
		{
			Reason:  "RowRemap",
			Meaning: "a row of its memory could not be remapped",
			Next: "reset it when no program uses it (`nvidia-smi --gpu-reset -i UUID`), or reboot the node; if that does not help, " +
				"have the GPU replaced",
		},
		{
			Reason:  "ResetNeeded",
			Meaning: "the driver asks for a reset or more, or faulty memory waits to be replaced on a GPU that needs the reset first",
			Next: "reset it when no program uses it (`nvidia-smi --gpu-reset -i UUID`), or reboot the node; the plugin has " +
				"released the GPU, so a reset is possible at once",
		},
		{
			Reason:  "Missing",
			Meaning: "the GPU existed in this boot, and the driver no longer shows it",
			Next: "reboot the node; if the error comes again, have the GPU and its slot, power and cables checked. It is healthy " +
				"when it returns",
		},
		{
			Reason: "Unreadable",
			Meaning: "NVML fails on it in another way, or a call hangs. With the strategy `single`, the GPU is left out, since it is " +
				"not known whether it is divided",
			Next: "see the plugin's log; it is healthy when NVML answers; otherwise reset or replace it",
		},
		{
			Reason:  "Unwatched",
			Meaning: "its health cannot be watched because of an error, or no events are received yet since the start",
			Next:    "as the message says; it is healthy when the watch works",
		},
		{
			Reason:  "FabricNotJoined",
			Meaning: "it failed to join its NVLink fabric, or has not joined while other GPUs of the node have: CUDA does not start on it",
			Next:    "see that the fabric manager runs; it is healthy when it has joined",
		},
		{
			Reason:  "StateUnreadable",
			Meaning: "its faults in this boot can no longer be read",
			Next: "reset it; or, if you know that the GPUs are healthy, remove the state file that the message names and restart " +
				"the plugin",
		},
		{
			Reason: "CDIUnavailable",
			Meaning: "the toolkit's specification does not name it, there is none, or the runtime has CDI off. As a phase's reason, " +
				"Degraded: containers may not get what they are allocated; Failed: none could be given to a container",
			Next: "see the toolkit's state: docs/toolkit.md has the runtimes. It recovers with a new state of the toolkit and the " +
				"runtime",
		},
		{
			Reason:  "DRADriverSilent",
			Meaning: "the node serves `plugin` again, and gpu-dra-driver has not said which devices claims hold",
			Next:    "see that the DaemonSet gpu-dra-driver runs on this node: docs/plugin-to-dra.md",
		},
		{
			Reason: "DeviceListUnserved",
			Meaning: "`deviceListStrategy` has only `envvar` or `volume-mounts`, and the node has neither a handler for them nor CDI. " +
				"As a phase's reason, Failed: this holds for every device",
			Next: "as the message says: turn CDI on, or add the handler (docs/configuration.md)",
		},
		{
			Reason:  "IMEXChannelMissing",
			Meaning: "`imex.required` is set, and the node has no channel",
			Next:    "load the driver with `NVreg_CreateImexChannel0=1`, or set `imex.required: false`",
		},
		{
			Reason: "MPSNotReady",
			Meaning: "it is shared by MPS, and its control daemon does not serve it. The message has the daemon's reason, or that " +
				"mps-daemon does not run on the node or has another configuration. In the state of mps-daemon: no resource is " +
				"served, or not all are",
			Next: "see the reasons of MPS below; it recovers when the daemon answers",
		},
	}},
	{by: DevicePlugin, of: "a note on a GPU, which is allocated nevertheless", rows: []Reason{
		{
			Reason:  "RowRemapPending",
			Meaning: "rows of faulty memory are replaced at the next reset, and not used until then (GA100, GH100, GB10x)",
			Next:    "reset the GPU when it is idle; `health.pendingRemap: unhealthy` in the configuration keeps new work away",
		},
		{
			Reason:  "NoXIDEvents",
			Meaning: "the driver reports no XIDs of the GPU, as in vGPU guests and WSL: it is polled",
			Next:    "nothing; errors show late, or only in programs",
		},
		{
			Reason:  "RecoverIMEXDomain",
			Meaning: "memory of other nodes cannot be used until nvidia-imex runs again; work within the node goes on",
			Next:    "start nvidia-imex on all nodes of the IMEX domain",
		},
		{
			Reason:  "DrainPeerToPeer",
			Meaning: "the driver can say what it needs only once no program uses NVLink between GPUs",
			Next:    "end the programs that use NVLink or UVM persistence between GPUs, then ask again (`nvidia-smi -q`)",
		},
		{
			Reason:  "RecoveryAction",
			Meaning: "the driver asks for a recovery that this version does not know",
			Next:    "see `nvidia-smi -q`; upgrade gpuready",
		},
		{
			Reason:  "FabricDegraded",
			Meaning: "the NVLink fabric reports less bandwidth, a route that is unhealthy or recovers, or a wrong configuration",
			Next:    "see `nvidia-smi -q`, section Fabric, and the log of the fabric manager or NMX",
		},
	}},
	{by: DevicePlugin, of: "a device that is left out", rows: []Reason{
		{Reason: "Excluded", Meaning: "`devices.exclude` names it", Next: "nothing: this is the configuration, not a fault"},
		{
			Reason:  "NotIncluded",
			Meaning: "`devices.include` does not name it",
			Next:    "nothing: this is the configuration, not a fault",
		},
		{
			Reason:  "NoMIGDevice",
			Meaning: "it is in MIG mode and not divided",
			Next:    "create MIG devices on it, or turn MIG mode off",
		},
		{
			Reason:  "MIGProfilesDiffer",
			Meaning: "with the strategy `single`, all MIG devices must have one profile",
			Next:    "divide the GPUs alike, or use `migStrategy: mixed`",
		},
		{
			Reason:  "MIGOnSomeGPUs",
			Meaning: "with the strategy `single`, all GPUs must be divided, or none",
			Next:    "divide the GPUs alike, or use `migStrategy: mixed`",
		},
		{Reason: "NoResource", Meaning: "no pattern names it, and it has no name of its own", Next: "name it in `resources`"},
		{
			Reason:  "MPSNotPossible",
			Meaning: "it is configured for MPS, but is a MIG device, or a GPU before Volta with more than 16 replicas",
			Next:    "share it in another way: docs/device-plugin.md",
		},
		{
			Reason:  "TooManyReplicas",
			Meaning: "its resource would have more devices than the kubelet accepts",
			Next:    "write fewer replicas",
		},
		{
			Reason:  "NoUUID",
			Meaning: "the driver cannot identify the GPU or the MIG device",
			Next:    "reset or replace the GPU; create the MIG device again",
		},
	}},
	{by: DevicePlugin, of: "the plugin", rows: []Reason{
		{
			Reason:  "NoGPU",
			Meaning: "Waiting: there is no GPU and no driver on this node, and the plugin is ready. Ready: the driver shows none",
			Next:    "nothing, unless this node should have one",
		},
		{Reason: "PlatformNotServed", Meaning: "Waiting: " + platformMeaning, Next: platformNext},
		{
			Reason:  "NoDriver",
			Meaning: "Waiting: there is no driver yet",
			Next:    "nothing, if one is being installed: the plugin continues by itself; otherwise install one",
		},
		{
			Reason:  "DriverVersionMismatch",
			Meaning: "Waiting: the driver is in the middle of an upgrade",
			Next:    "finish the upgrade; the plugin continues by itself",
		},
		{
			Reason: "InjectionMissing",
			Meaning: "Waiting: this container was created without the GPUs, and the toolkit cannot inject them now. Failed: the " +
				"plugin has ended, since the toolkit skipped it",
			Next: "see the toolkit's log and state: docs/device-plugin.md",
		},
		{
			Reason:  "InjectionOutdated",
			Meaning: "Waiting: the toolkit injects other devices now than this container has; the plugin has ended",
			Next:    "nothing: the container is recreated",
		},
		{
			Reason:  "FolderReplaced",
			Meaning: "Waiting: a folder of the host that the container has mounted was removed or renamed; the plugin has ended",
			Next:    "nothing: the container is recreated",
		},
		{
			Reason:  "DevicePluginStopped",
			Meaning: "Waiting: the plugin was stopped. Pods keep their GPUs, and no new pod gets one",
			Next:    "start it again",
		},
		{
			Reason: "ConfigNotChosen",
			Meaning: "Waiting, with `--config-dir`: the validator has not yet reported the choice of the node's label in this boot; " +
				"nothing is registered",
			Next: "see that gpu-validator runs on the node with `--node-name`, and reaches the API server",
		},
		{
			Reason:  "NoKubelet",
			Meaning: "Waiting: no kubelet has registered the plugin yet. Failed: none did in time, and the plugin has ended",
			Next:    "see that the kubelet runs, and that its socket is where `--kubelet-socket` says",
		},
		{Reason: "Starting", Meaning: "Waiting: nothing is read yet", Next: "wait"},
		{
			Reason:  "SwitchingToDRA",
			Meaning: "Waiting: the kubelet is sent empty lists, before gpu-dra-driver offers the GPUs",
			Next:    "wait",
		},
		{
			Reason: "DevicesWithheld",
			Meaning: "Waiting: every device is withheld, since pods of the other side hold them, or nothing is known of them. " +
				"Degraded: some are",
			Next: "see `withheld` in the state, which has the reason of each: docs/plugin-to-dra.md",
		},
		{
			Reason: "HeldByPod",
			Meaning: "of a device that is withheld, on the way to `dra`: the pod that the message names has it from the device " +
				"plugin. A pod with only a UID is one of which an init container has the GPU, or that the kubelet has not seen " +
				"again since its restart",
			Next: "wait for the end of the pod, or delete it",
		},
		{
			Reason:  "PodsUnknown",
			Meaning: "of a device that is withheld, on the way to `dra`: the kubelet has not said which devices pods hold",
			Next:    "see that the kubelet runs, and that its PodResources socket is mounted in the device plugin",
		},
		{
			Reason:  "NothingAdvertised",
			Meaning: "Ready: the configuration leaves every GPU out",
			Next:    "nothing, if that is intended; otherwise change `devices`",
		},
		{Reason: "UnhealthyDevices", Meaning: "Degraded: some devices are unhealthy", Next: "see the reason of each device"},
		{
			Reason:  "ServeLabelRefused",
			Meaning: "Degraded: the node's label `nvidia.com/gpu.serve` is neither `plugin` nor `dra`; what was in force stays so",
			Next:    "`kubectl gpu serve NODE plugin`, or `dra`",
		},
		{
			Reason: "ConfigRefused",
			Meaning: "Degraded: a new configuration is refused; the previous one stays in force. Failed, with `--config-dir`: the " +
				"first chosen one is refused, and nothing is registered",
			Next: "correct the field that the message names",
		},
		{
			Reason: "DevicesLeftOut",
			Meaning: "Degraded: a GPU or MIG device is left out, although the configuration does not ask for it. Failed, with that " +
				"device's reason: every GPU is",
			Next: "see the reason of that device",
		},
		{
			Reason:  "NoPermission",
			Meaning: "Failed: the plugin may not open the device nodes, and has ended",
			Next:    "give the container the GPUs by injection, or run it privileged; hostPath alone is refused by the device cgroup",
		},
		{
			Reason:  "DriverFailed",
			Meaning: "Failed: the driver does not work, and the plugin has ended",
			Next:    "see the last line of the log",
		},
		{Reason: "NoHealthyDevice", Meaning: "Failed: no GPU is healthy", Next: "see the reason of each device"},
		{
			Reason:  "KubeletFolderReplaced",
			Meaning: "Failed: the folder of the kubelet's sockets was removed or replaced; the plugin has ended",
			Next:    "nothing, if the container is started again: it then mounts the new folder",
		},
		{Reason: "PluginFailed", Meaning: "Failed: the plugin has ended", Next: "see the last line of the log"},
		{
			Reason:  "StateNotWritable",
			Meaning: "in log and metrics only: the state file cannot be written. The kubelet still gets every change of a GPU's health",
			Next:    "make room, or mount it writable; the write is tried again: docs/validator.md has more",
		},
		{
			Reason: "DeviceNodesMissing",
			Meaning: "in the log only: containers do not get all that is configured (GDRCopy, GPUDirect Storage, OFED, IMEX channels, " +
				"device nodes), since it is not on the host",
			Next: "install what the message names, or do not configure it",
		},
		{
			Reason:  "RegistrationFailed",
			Meaning: "in the log only: the kubelet refuses a registration",
			Next:    "nothing, unless it lasts: it is tried again, and the message has the kubelet's answer",
		},
		{
			Reason: "Hung",
			Meaning: "in the log only: a call of NVML does not return. Its thread is abandoned, and no GPU is released for a reset " +
				"until the plugin restarts",
			Next: "restart the plugin",
		},
	}},
	{by: DevicePlugin, of: "MPS", rows: []Reason{
		{Reason: "MPSStarting", Meaning: "a control daemon has not answered yet", Next: "wait"},
		{
			Reason: "ComputeModeConflict",
			Meaning: "somebody has set a GPU's compute mode, or it is in MIG mode; the others are served, and so is this one when " +
				"that has changed",
			Next: "`nvidia-smi -i N -c DEFAULT`, or turn MIG mode off",
		},
		{
			Reason:  "MPSDaemonFailed",
			Meaning: "the control daemon cannot be started, or ended; it is restarted",
			Next:    "see `control.log` in its log folder",
		},
		{
			Reason:  "MPSDaemonSilent",
			Meaning: "the control daemon does not answer; it is restarted",
			Next:    "see `control.log` in its log folder",
		},
		{
			Reason:  "MPSDaemonEnded",
			Meaning: "mps-daemon was ended, or the resource is now shared in another way",
			Next:    "nothing, if that is intended",
		},
		{Reason: "NothingShared", Meaning: "the configuration shares nothing by MPS", Next: "nothing"},
	}},
}
