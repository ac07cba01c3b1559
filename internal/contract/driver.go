package contract

// driverReasons are the reasons of gpu-driver.
var driverReasons = []group{
	{by: Driver, rows: []Reason{
		{
			Reason:  "KernelMismatch",
			Meaning: "the image has no modules for the running kernel, or the kernel rejects them as those of another one",
			Next:    "use the image for this kernel",
		},
		{
			Reason: "SignatureRejected",
			Meaning: "the kernel loads only signed modules (Secure Boot, `module.sig_enforce`), and a module is not signed, or its " +
				"key is not trusted",
			Next: "enrol the signer's certificate: `mokutil --import CERT.der`, restart the node; or sign with a trusted key",
		},
		{
			Reason:  "LockedDown",
			Meaning: "lockdown or a missing capability forbids loading",
			Next:    "sign the modules; run the container privileged",
		},
		{
			Reason:  "NoDevice",
			Meaning: "there is no GPU on the PCI bus, or the modules support none of them",
			Next:    "use a driver version and `kernelModuleType` that support the GPU",
		},
		{Reason: "PlatformNotServed", Meaning: platformMeaning, Next: platformNext},
		{
			Reason:  "NouveauInTheWay",
			Meaning: "another driver of the kernel, such as nouveau or nova_core, holds the GPUs, and does not let go of them",
			Next: "end the processes that are named, such as a display server; or keep that driver from being loaded, by the lines " +
				"in the message, and restart the node",
		},
		{
			Reason:  "DependencyMissing",
			Meaning: "a required module, symbol or daemon's program is missing",
			Next:    "use an image that has it; mount the host's `/lib/modules`; install the kernel's extra modules",
		},
		{Reason: "InUse", Meaning: "another process or module holds the old driver", Next: "end the named process or module"},
		{
			Reason:  "ParameterUnknown",
			Meaning: "a file in `/drivers` names an unknown parameter or module, or an invalid value",
			Next:    "correct the named line; `gpu-driver modinfo` lists parameters",
		},
		{
			Reason:  "DeviceInitFailed",
			Meaning: "the modules' own initialisation failed, or a daemon without which GPUs cannot be used",
			Next:    "read the quoted lines of the kernel's log or the daemon",
		},
		{
			Reason:  "BuildFailed",
			Meaning: "modules could not be compiled, linked or signed for the kernel",
			Next: "the message has the file, the line and the compiler's words, and what helps where that is known: a newer driver " +
				"version, the headers of this kernel, the compiler that built it, room on the disk",
		},
		{
			Reason: "ToolkitBroken",
			Meaning: "on OpenShift, the container of the Driver Toolkit cannot build: there is no image of it for the node's " +
				"operating system, the image is of another kernel, it does not respond, the shared folder is full, or its output " +
				"is not what was requested",
			Next: "as the message says: check `oc get imagestream/driver-toolkit -n openshift`, the log of " +
				"`openshift-driver-toolkit-ctr`, the volume's `sizeLimit`",
		},
		{
			Reason:  "SourceUnreachable",
			Meaning: "the modules can only come from the registry, which does not answer or refuses",
			Next:    "make it reachable from the node, correct `DOCKER_CONFIG`, or use an image with modules or sources",
		},
		{Reason: "DriverStarting", Meaning: "the driver is being loaded, built or pulled", Next: "wait"},
		{Reason: "DriverFailed", Meaning: "something on the node failed, such as a full disk", Next: "as the message says"},
		{Reason: "DriverStopped", Meaning: "the container has ended and the driver was unloaded", Next: "nothing"},
		{
			Reason:  "DriverUnattended",
			Meaning: "the container has ended and the driver stays, because it is in use",
			Next:    "start the container again: it adopts the driver",
		},
		{
			Reason:  "DriverTaken",
			Meaning: "somebody else removed the driver root, or a module, while the driver was served",
			Next:    "the container starts again and restores it",
		},
	}},
}
