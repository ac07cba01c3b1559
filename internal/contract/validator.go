package contract

// validatorReasons are the reasons of gpu-validator. One whose meaning begins with "note" keeps no layer from being
// proven.
var validatorReasons = []group{
	{by: Validator, of: "any layer", rows: []Reason{
		{
			Reason:  "NoGPU",
			Meaning: "no NVIDIA GPU on the PCI bus, or all are set aside for virtual machines, and no driver",
			Next:    "nothing, unless this node should have one",
		},
		{Reason: "NotRun", Meaning: "an earlier layer is not ready", Next: "see that layer"},
		{Reason: "NotAsked", Meaning: "an optional layer that nobody requests", Next: "nothing, or `--optional`"},
		{Reason: "Interrupted", Meaning: "the check was interrupted", Next: "run it again"},
		{
			Reason: "StateNotWritable",
			Meaning: "an agent cannot write its file below `/run/nvidia`; the message has the path and the system's error. The " +
				"kubelet still gets the health of each GPU, but the node's status may be out of date. The condition stays True " +
				"while all layers are proven",
			Next: "free space (`df -h /run; df -i /run`), or mount it writable; nothing else: the write is tried again at least " +
				"every 5 seconds: docs/validator.md has more",
		},
		{Reason: "Starting", Meaning: "the daemon has not finished its first check since it started", Next: "wait for it"},
		{
			Reason: "FolderReplaced",
			Meaning: "a folder of the host that is mounted in the container was removed or renamed, so that the container has the " +
				"former one",
			Next: "nothing: it is recreated within seconds",
		},
		{
			Reason:  "InjectionOutdated",
			Meaning: "the container has the GPUs of an earlier state of the node",
			Next:    "nothing: it is recreated",
		},
	}},
	{by: Validator, of: "layer driver", rows: []Reason{
		{
			Reason:  "InjectionMissing",
			Meaning: "this container was created without the GPUs' devices",
			Next: "read the toolkit's log; check that the pod is in the toolkit's namespace and has `gpuready.io/management: " +
				"\"true\"`; without NRI, use the privileged variant",
		},
		{
			Reason:  "DriverLibraryMissing",
			Meaning: "no libnvidia-ml below the driver root",
			Next:    "install the driver's user libraries, or set `--driver-root`",
		},
		{
			Reason:  "KernelModuleNotLoaded",
			Meaning: "`nvidia` is not loaded",
			Next:    "`modprobe nvidia`; `dmesg` has the cause: Secure Boot, another kernel",
		},
		{Reason: "UVMModuleNotLoaded", Meaning: "`nvidia-uvm`, which CUDA needs, is not loaded", Next: "`modprobe nvidia-uvm`"},
		{
			Reason:  "NouveauInTheWay",
			Meaning: "the kernel's own driver has the GPU",
			Next:    "blacklist nouveau, rebuild the initramfs, reboot",
		},
		{
			Reason:  "DriverVersionMismatch",
			Meaning: "user libraries and kernel module are of different versions: half an upgrade",
			Next:    "reload the modules, with no process on a GPU, or reboot",
		},
		{
			Reason:  "DriverLibrariesDiffer",
			Meaning: "libcuda or the JIT compiler is of another version than libnvidia-ml",
			Next:    "install all user libraries of one version",
		},
		{Reason: "LibcudaMissing", Meaning: "the driver has libnvidia-ml and no libcuda", Next: "install the whole driver"},
		{
			Reason:  "DeviceNodesNotPermitted",
			Meaning: "the device nodes cannot be opened from here",
			Next:    "give the container the GPUs by CDI or the handler; hostPath alone is refused by the device cgroup",
		},
		{
			Reason:  "NVMLFailed",
			Meaning: "NVML fails in another way, or a GPU hangs it",
			Next:    "see NVRM and Xid lines in `dmesg`; reset or reboot",
		},
		{
			Reason:  "GPUsMissing",
			Meaning: "fewer GPUs are usable than `run --expect-gpus` says, or with `--strict` one is not",
			Next:    "see the message, which names each GPU, and `dmesg`; reset or reboot; run `gpu-validator preflight`",
		},
		{
			Reason:  "NoUsableGPU",
			Meaning: "the driver works and finds no GPU, or each has a fault",
			Next:    "see `dmesg`: not supported, bound to another driver, off the bus",
		},
		{
			Reason:  "DeviceNodeMissing",
			Meaning: "a node below `/dev` is not there",
			Next:    "start gpu-toolkit, which makes it; by hand: `nvidia-modprobe -u -c=0`",
		},
		{
			Reason:  "DeviceNodeWrong",
			Meaning: "a node has other numbers than the driver's",
			Next:    "remove it and create it again, as the message says",
		},
		{
			Reason: "DeviceLinkMissing",
			Meaning: "note: no link below `/dev/char`. Where the runtime uses systemd's cgroups, the next `systemctl daemon-reload` " +
				"takes the devices from running containers",
			Next: "start gpu-toolkit, which makes the links",
		},
		{
			Reason:  "SimulatedDriverRefused",
			Meaning: "the driver is simulated, with no GPU under it",
			Next:    "allow it with `--allow-simulated` where that is intended",
		},
		{
			Reason:  "AttestationPending",
			Meaning: "confidential computing is on, and the GPUs accept no work before their ready state is set",
			Next:    "attest the GPUs, then `nvidia-smi conf-compute -srs 1`, each time the driver is loaded",
		},
		{Reason: "PlatformNotServed", Meaning: platformMeaning, Next: platformNext},
	}},
	{by: Validator, of: "layer toolkit", rows: []Reason{
		{
			Reason:  "ToolkitSilent",
			Meaning: "gpu-toolkit has written no state in this boot",
			Next:    "start it on this node: labels, taints, image of its DaemonSet",
		},
		{Reason: "ToolkitStateInvalid", Meaning: "gpu-toolkit's state cannot be read", Next: "restart gpu-toolkit"},
		{Reason: "ToolkitNotReady", Meaning: "gpu-toolkit waits or failed, without a reason", Next: "see its log"},
		{
			Reason:  "SpecsOfAnotherDriver",
			Meaning: "the specifications are for another driver version than the loaded one",
			Next:    "wait: gpu-toolkit follows within seconds; else see its log",
		},
		{
			Reason:  "CDIDirectoryUnreadable",
			Meaning: "a folder of specifications cannot be read",
			Next:    "make it readable for this process",
		},
		{
			Reason:  "CDISpecMissing",
			Meaning: "the specification of kind `k8s.gpuready.io/gpu` is gone; the message has the file",
			Next:    "wait: gpu-toolkit, its only writer, restores it within seconds; else see its log",
		},
		{
			Reason:  "CDISpecInvalid",
			Meaning: "the specification exists, but runtimes ignore it",
			Next:    "remove the file; gpu-toolkit writes it again",
		},
		{
			Reason:  "CDINameConflict",
			Meaning: "two files define one of gpuready's names; the message has both",
			Next:    "remove the one that is not gpu-toolkit's",
		},
		{
			Reason:  "CDINameUnresolvable",
			Meaning: "a GPU or MIG device has no name in the specification",
			Next:    "see gpu-toolkit's log",
		},
		{
			Reason:  "CDISpecIncomplete",
			Meaning: "a device node, library or hook that the specification names is not there",
			Next:    "restart gpu-toolkit; if files of the driver are missing, install it again",
		},
		{
			Reason:  "RuntimeWithoutCDI",
			Meaning: "the container runtime has CDI off",
			Next:    "change its configuration as the message says, and restart it",
		},
		{
			Reason: "HandlerMissing",
			Meaning: "the runtime lacks the handler that the toolkit is configured to install, or the kubelet has not known it for " +
				"half a minute",
			Next: "read gpu-toolkit's log and `gpu-toolkit plan`; check that toolkit and kubelet use the same runtime",
		},
	}},
	{by: Validator, of: "layer cuda", rows: []Reason{
		{
			Reason:  "SampleMissing",
			Meaning: "`vectoradd` is neither beside gpu-validator nor in `PATH`",
			Next:    "name it with `--vectoradd`",
		},
		{
			Reason:  "CUDASampleFailed",
			Meaning: "`vectoradd` failed on a GPU, or computed a wrong element; the message has both",
			Next: "repeat it: `CUDA_VISIBLE_DEVICES=UUID vectoradd`; if it fails again, take the GPU out of service. Without memory " +
				"(error 2) on a GPU that nobody is seen to use: end what has it, or reset the GPU",
		},
		{
			Reason: "GPUInUse",
			Meaning: "note: GPUs are not proven now, since pods or processes use them, which the message names, or the kubelet " +
				"does not tell. `vectoradd` was not run there, or found no room (error 2) or no access (46)",
			Next: "nothing: it is tried again, and passes once they are free",
		},
		{
			Reason:  "ComputeProhibited",
			Meaning: "note: an administrator has set the compute mode PROHIBITED, in which nothing computes",
			Next:    "nothing, if that is intended; else `nvidia-smi -i GPU -c DEFAULT`",
		},
		{
			Reason:  "CUDASampleTimeout",
			Meaning: "`vectoradd` gave no result in time",
			Next:    "reset a GPU that hangs, or give more time with `--cuda-timeout`",
		},
		{
			Reason:  "NoMIGDevices",
			Meaning: "every GPU is in MIG mode and none is divided",
			Next:    "create MIG devices, or turn MIG mode off",
		},
	}},
	{by: Validator, of: "layer plugin", rows: []Reason{
		{
			Reason:  "DRADriverSilent",
			Meaning: "the node serves `dra`, and gpu-dra-driver does not run",
			Next:    "start it on this node (DaemonSet `gpu-dra-driver`), or `kubectl gpu serve NODE plugin`",
		},
		{
			Reason:  "DRADriverWaiting",
			Meaning: "the node serves `dra`, and gpu-dra-driver runs, but offers nothing yet",
			Next:    "see the message, which has what it waits for, and its log",
		},
		{
			Reason:  "DevicePluginSilent",
			Meaning: "gpu-device-plugin has written no state in this boot, or was stopped",
			Next:    "start it on this node: labels, taints, image of its DaemonSet",
		},
		{Reason: "DevicePluginStateInvalid", Meaning: "the device plugin's state cannot be read", Next: "restart gpu-device-plugin"},
		{
			Reason:  "DevicePluginNotRegistered",
			Meaning: "the kubelet does not know the device plugin",
			Next:    "read its log; check that the kubelet runs",
		},
		{
			Reason:  "ConfigRefused",
			Meaning: "of an Event: the device plugin refuses its configuration",
			Next:    "change the field as the message says",
		},
		{
			Reason:  "KubeletUnreachable",
			Meaning: "the PodResources socket does not answer",
			Next:    "check that the kubelet runs and that its folder `pod-resources` is mounted",
		},
		{Reason: "NothingAllocatable", Meaning: "every GPU is unhealthy or left out", Next: "see the message, which has the reason of each"},
		{
			Reason:  "DevicePluginStopped",
			Meaning: "of the device plugin's own state; the layer reports `DevicePluginSilent`",
			Next:    "start it on this node",
		},
		{
			Reason: "AllocatableShort",
			Meaning: "the kubelet can allocate fewer devices than the driver sees; the message counts the missing ones, and names " +
				"three",
			Next: "wait: it is usually over in seconds; else see the logs of gpu-device-plugin and kubelet",
		},
		{
			Reason:  "AllocatableDiffers",
			Meaning: "driver, device plugin and kubelet disagree in another way",
			Next:    "see gpu-device-plugin's log",
		},
		{Reason: "WorkloadRunning", Meaning: "the pod is in progress", Next: "wait for it"},
		{
			Reason:  "WorkloadUnschedulable",
			Meaning: "a GPU is free for the kubelet, and the scheduler sees none for 15 seconds",
			Next:    "compare with `kubectl describe node`",
		},
		{
			Reason:  "WorkloadNotAdmitted",
			Meaning: "the kubelet refused the pod, for instance because `Allocate` failed",
			Next:    "see the logs of kubelet and gpu-device-plugin",
		},
		{
			Reason:  "WorkloadImageMissing",
			Meaning: "the pod's image cannot be pulled",
			Next:    "check `--workload-image`, the registry and the pull secret",
		},
		{
			Reason:  "WorkloadNotStarted",
			Meaning: "the runtime did not create or start the container",
			Next:    "see the runtime's log, for instance for CDI names that do not resolve",
		},
		{
			Reason: "AllocatedButAbsent",
			Meaning: "the pod was allocated a GPU and its container has none: a kubelet before 1.29, which drops CDI names, or a " +
				"runtime with CDI off; the message says which, where it is known",
			Next: "install a newer kubelet or use `--device-list-strategy=cdi-annotations`; turn CDI on or use " +
				"`--device-list-strategy=volume-mounts` with the handler",
		},
		{
			Reason:  "WorkloadFailed",
			Meaning: "`vectoradd` failed in the pod",
			Next:    "if it passes outside of a pod, check what the specification gives to containers",
		},
		{
			Reason:  "WorkloadTimeout",
			Meaning: "the pod gave no result in time",
			Next:    "reset a GPU that hangs, or give more time with `--workload-timeout`",
		},
		{
			Reason:  "AllAllocated",
			Meaning: "note: pods hold every device, as the PodResources API reports; the matching counts are the proof",
			Next:    "nothing",
		},
		{
			Reason:  "NodeFull",
			Meaning: "note: the scheduler has no room for the pod, for other reasons than GPUs",
			Next:    "nothing, if the node is meant to be full",
		},
		{
			Reason:  "WorkloadEndedByOthers",
			Meaning: "note: the pod was deleted, evicted or preempted",
			Next:    "nothing: it is retried",
		},
		{
			Reason:  "WorkloadNameTaken",
			Meaning: "note: a pod of that name belongs to somebody else, and is left alone",
			Next:    "remove it",
		},
		{Reason: "NoScheduler", Meaning: "note: no scheduler handled the pod", Next: "see that kube-scheduler runs"},
		{
			Reason:  "WorkloadForbidden",
			Meaning: "note: the API server refuses the pod: rights, quota, a policy",
			Next:    "as the message says",
		},
		{Reason: "APIServerUnreachable", Meaning: "note: the API server does not answer", Next: "nothing, if the outage is short"},
	}},
	{by: Validator, of: "an optional layer", rows: []Reason{
		{
			Reason:  "PeermemModuleNotLoaded",
			Meaning: "peermem: `nvidia_peermem` is not loaded",
			Next:    "load the cards' driver first, then `modprobe nvidia-peermem`; with DMA-BUF it is not needed",
		},
		{Reason: "GDSModuleNotLoaded", Meaning: "gds: `nvidia_fs` is not loaded", Next: "`modprobe nvidia-fs`; see `dmesg`"},
		{Reason: "GDSDeviceMissing", Meaning: "gds: the module has no devices", Next: "load it again"},
		{Reason: "GDRCopyModuleNotLoaded", Meaning: "gdrcopy: `gdrdrv` is not loaded", Next: "`modprobe gdrdrv`; see `dmesg`"},
		{
			Reason:  "GDRCopyDeviceMissing",
			Meaning: "gdrcopy: `/dev/gdrdrv` is not there, or has another number",
			Next:    "make it, with the number in `/proc/devices`",
		},
		{Reason: "MOFEDContainerNotReady", Meaning: "mofed: the containerised driver has not finished", Next: "see its pod's log"},
		{Reason: "MOFEDModuleNotLoaded", Meaning: "mofed: cards on the bus, and no driver", Next: "`modprobe mlx5_ib`; see `dmesg`"},
		{Reason: "MOFEDDeviceMissing", Meaning: "mofed: the driver has no RDMA device", Next: "see `dmesg` for mlx5_core"},
		{
			Reason:  "FabricNotJoined",
			Meaning: "fabric: a GPU waits for the fabric manager; CUDA does not initialise before",
			Next:    "start the fabric manager, of the driver's version",
		},
		{Reason: "FabricFailed", Meaning: "fabric: a GPU was not let in", Next: "see the fabric manager's log; reset or reboot"},
		{
			Reason:  "VFIODriverMissing",
			Meaning: "vfio: the kernel has no `vfio-pci`",
			Next:    "`modprobe vfio-pci`, and turn the IOMMU on",
		},
		{
			Reason:  "GPUNotBoundToVFIO",
			Meaning: "vfio: a GPU is bound to another driver, or to none",
			Next:    "bind it, as the message says",
		},
		{
			Reason:  "VGPUManagerNotLoaded",
			Meaning: "vgpu: the host's driver of NVIDIA vGPU is not loaded",
			Next:    "install it; see `dmesg`",
		},
		{
			Reason:  "VGPUDevicesMissing",
			Meaning: "vgpu: the manager has no vGPU",
			Next:    "see the vGPU device manager's log and `sriov-manage`",
		},
	}},
}
