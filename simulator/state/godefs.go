//go:build ignore

// The names of state.h in Go; see generate.go.

package state

// #include "state.h"
import "C"

const (
	magic  = C.GPUSIM_MAGIC
	Layout = C.GPUSIM_LAYOUT

	MaxGPUs       = C.GPUSIM_GPUS
	MaxLinks      = C.GPUSIM_LINKS
	MaxGIProfiles = C.GPUSIM_GI_PROFILES
	MaxCIProfiles = C.GPUSIM_CI_PROFILES
	MaxPlacements = C.GPUSIM_PLACEMENTS
	MaxGIs        = C.GPUSIM_GIS
	MaxCIs        = C.GPUSIM_CIS
	MaxProcs      = C.GPUSIM_PROCS
	MaxEvents     = C.GPUSIM_EVENTS
	ECCLocations  = C.GPUSIM_ECC_LOCATIONS

	hold = C.GPUSIM_HOLD

	MaxInitCost = C.GPUSIM_MAX_INIT_COST
	MaxCallCost = C.GPUSIM_MAX_CALL_COST
	MaxRules    = C.GPUSIM_RULES
	MaxDelay    = C.GPUSIM_MAX_DELAY

	RemoteNone   = C.GPUSIM_REMOTE_NONE
	RemoteGPU    = C.GPUSIM_REMOTE_GPU
	RemoteSwitch = C.GPUSIM_REMOTE_SWITCH

	LostNo      = C.GPUSIM_LOST_NO
	LostCalls   = C.GPUSIM_LOST_CALLS
	LostHandle  = C.GPUSIM_LOST_HANDLE
	LostGone    = C.GPUSIM_LOST_GONE
	LostUnknown = C.GPUSIM_LOST_UNKNOWN
	LostEvents  = C.GPUSIM_LOST_EVENTS

	MemfaultNone  = C.GPUSIM_MEMFAULT_NONE
	MemfaultStuck = C.GPUSIM_MEMFAULT_STUCK
	MemfaultFlip  = C.GPUSIM_MEMFAULT_FLIP

	FabricBandwidth     = C.GPUSIM_FABRIC_BANDWIDTH
	FabricRouteRecovery = C.GPUSIM_FABRIC_ROUTE_RECOVERY
	FabricRoute         = C.GPUSIM_FABRIC_ROUTE
	FabricAccessTimeout = C.GPUSIM_FABRIC_ACCESS_TIMEOUT

	MemfaultStuckAt0 = C.GPUSIM_MEMFAULT_STUCK_AT_0
	MemfaultStuckAt1 = C.GPUSIM_MEMFAULT_STUCK_AT_1

	DeviceBase   = C.GPUSIM_DEVICE_BASE
	DeviceStride = C.GPUSIM_DEVICE_STRIDE
)

type (
	PCI       C.struct_gpusim_pci
	Link      C.struct_gpusim_link
	GIProfile C.struct_gpusim_gi_profile
	GI        C.struct_gpusim_gi
	CI        C.struct_gpusim_ci
	Proc      C.struct_gpusim_proc
	GPU       C.struct_gpusim_gpu
	Rule      C.struct_gpusim_rule
	State     C.struct_gpusim_state
	Event     C.struct_gpusim_event
	file      C.struct_gpusim_file
)
