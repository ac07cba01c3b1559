package contract

// preflightReasons are the reasons of gpu-validator preflight. Each meaning begins with the verdict.
var preflightReasons = []group{
	{by: Preflight, rows: []Reason{
		{
			Reason:  "ECC",
			Meaning: "unhealthy: uncorrectable memory errors since the driver was loaded",
			Next:    "end the programs on the GPU, then reset it (`nvidia-smi --gpu-reset`); if it comes again, have the GPU replaced",
		},
		{Reason: "RowRemap", Meaning: "unhealthy: remapping a row of faulty memory failed", Next: "have the GPU replaced"},
		{
			Reason:  "ResetNeeded",
			Meaning: "unhealthy: the driver asks for a reset, or rows of faulty memory wait to be remapped",
			Next:    "end the programs on the GPU, then reset it (`nvidia-smi --gpu-reset`); if it comes again, have the GPU replaced",
		},
		{
			Reason: "XID",
			Meaning: "unhealthy: an XID that counts against the GPU was reported during the run, or the device plugin has recorded it " +
				"and seen no end of it",
			Next: "look for Xid lines in dmesg; docs/reasons.md says what each asks for",
		},
		{
			Reason:  "GPULost",
			Meaning: "unhealthy: the GPU was lost during the run",
			Next:    "look for Xid lines in dmesg; docs/reasons.md says what each asks for; reboot the node",
		},
		{
			Reason:  "FabricNotJoined",
			Meaning: "unhealthy: the GPU failed to join its NVLink fabric, or has not joined while others of the node have",
			Next:    "see that the fabric manager runs (on NVL72: the switch trays' NMX); if the GPU alone does not join, reset it",
		},
		{
			Reason:  "Unreadable",
			Meaning: "unhealthy: NVML fails on the GPU",
			Next:    "see the log of gpu-device-plugin on this node",
		},
		{
			Reason:  "ClocksHeldDown",
			Meaning: "unhealthy: temperature or power made the GPU slower",
			Next: "look at temperature, airflow and power supply of the slot: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i " +
				"UUID`",
		},
		{
			Reason: "PCIeLinkDegraded",
			Meaning: "unhealthy: fewer lanes, or an older generation under load, than GPU and slot support, or, where the slot is " +
				"not visible, than most GPUs of its product on the node have",
			Next: "reseat the GPU, look at riser and cable, and compare `lspci -vv` (LnkSta, LnkCap) with its neighbours",
		},
		{
			Reason:  "NVLinkDown",
			Meaning: "unhealthy: fewer links are up than on equal GPUs, on the baseboard, in an earlier result, or in `topology` of `--thresholds`",
			Next: "see `nvidia-smi nvlink -s` and the fabric manager's log; reset the GPU; if it stays so, look at bridge or " +
				"baseboard",
		},
		{
			Reason:  "ConditionNotRead",
			Meaning: "unhealthy: NVML failed on this GPU",
			Next:    "look for NVRM and Xid lines in dmesg; a GPU that does not answer needs a reset",
		},
		{
			Reason:  "SampleFailed",
			Meaning: "unhealthy: a driver call failed in a sample, or the sample ended without a result",
			Next:    "repeat by hand: `CUDA_VISIBLE_DEVICES=UUID SAMPLE`",
		},
		{
			Reason:  "WrongResult",
			Meaning: "wrong: a sample's result differs from the CPU's",
			Next:    "take the GPU out of service; repeat by hand: `CUDA_VISIBLE_DEVICES=UUID SAMPLE`",
		},
		{
			Reason:  "MemoryWrong",
			Meaning: "wrong: memory did not keep what was written; the message has the address",
			Next:    "take the GPU out of service; look for Xid lines in dmesg; if a reset does not mend it, have it replaced",
		},
		{
			Reason:  "BelowLimit",
			Meaning: "slow: a figure is below its limit",
			Next:    "see that nothing else runs on the GPU (`nvidia-smi`), and run again; if it stays so, take the GPU out of service",
		},
		{
			Reason:  "Outlier",
			Meaning: "slow: a figure is far below that of equal devices",
			Next:    "see that nothing else runs on the GPU (`nvidia-smi`), and run again; if it stays so, take the GPU out of service",
		},
		{
			Reason:  "PeerBelowLimit",
			Meaning: "slow: the path to or from other GPUs is below its limit",
			Next:    "see `nvidia-smi nvlink -s` and `-e` (errors of links) on both ends, and the fabric manager's log",
		},
		{
			Reason:  "NoResultInTime",
			Meaning: "not run: a sample had no time left, or the GPU hangs",
			Next:    "give more time with `--timeout`; a GPU that hangs needs a reset: look for Xid lines in dmesg",
		},
		{
			Reason:  "SampleMissing",
			Meaning: "not run: a sample is neither beside `gpu-validator` nor in `PATH`",
			Next:    "install it on the node: the validator's image has all samples",
		},
		{
			Reason:  "NoMIGDevices",
			Meaning: "not run: the GPU is in MIG mode and has no MIG devices, or is partitioned as claims need it (docs/dra.md)",
			Next:    "create MIG devices, or turn MIG mode off; where claims partition the GPU, drain the node first",
		},
		{
			Reason:  "GPUInUse",
			Meaning: "not run: a sample found no memory (error 2), no access (46) or no room with the MPS daemon (805 to 810), as on a GPU in use",
			Next:    "see who uses it (`nvidia-smi` on the host), and run again when it is idle; if nobody does, reset the GPU",
		},
		{
			Reason:  "ComputeProhibited",
			Meaning: "not run: an administrator has set the compute mode PROHIBITED, in which nothing computes",
			Next:    "nothing, if that is intended; else `nvidia-smi -i UUID -c DEFAULT`",
		},
	}},
}
