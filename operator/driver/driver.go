// Package driver chooses how each pool of nodes gets its driver. It also handles kernel modules
// for gpuready's driver images that are built apart from the driver: where they are stored, the
// Jobs that build them before a node runs their kernel, and the results of these Jobs.
//
// It is pure: the contents of the registry and of the cluster's ImageStreams are inputs.
package driver

import (
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
)

// Variant is a way to install a driver on a node.
type Variant string

// The variants.
const (
	None          Variant = ""              // spec.driver.enabled is false: the host has one
	Container     Variant = "container"     // a driver container for each operating system
	DriverToolkit Variant = "driverToolkit" // built with OpenShift's Driver Toolkit for each RHCOS version
	Precompiled   Variant = "precompiled"   // prebuilt modules for each kernel
	Simulated     Variant = "simulated"
)

// Choice is the driver of a pool. Pools with the same Choice.ID are served by one DaemonSet,
// and their Choices differ only in Pool and Problem.
type Choice struct {
	Pool     fleet.Pool
	Variant  Variant
	ID       string            // value of the Node label gpuready.io/driver, at most 63 characters
	Name     string            // of the DaemonSet
	Image    string            // of the driver container
	Sidecar  string            // of the Driver Toolkit's container; "" if OpenShift has none
	Selector map[string]string // Node labels that the DaemonSet requires, besides gpuready.io/driver
	// Ours means that Image is a driver container of this product. Its contract differs from
	// that of NVIDIA's.
	Ours          bool     `json:",omitempty"`
	Version       string   `json:",omitempty"` // of the driver in an image that is ours; "" if unknown
	AssumedNVIDIA bool     `json:",omitempty"` // assumed to be NVIDIA's, as the registry did not tell
	Problem       *Problem // why it is not the driver that the policy requires, or none at all
}

// Problem describes why a pool does not get the driver that the policy requires.
type Problem struct {
	Reason  Reason
	Message string // names the exact tag, version and a node, and the next action
	// Keep means that the pool's nodes keep their driver and the Choice is not rolled out.
	Keep bool
	// Try means that the Choice may be rolled out anyway if the pool has no driver to keep. The
	// kubelet then reports whether it works. Try requires Keep; see the function Try.
	Try bool
}

// Reason is a one-word reason, as used in conditions.
type Reason string

// The reasons.
const (
	OSUnknown                 Reason = "OSUnknown"                 // no OS tag
	KernelUnknown             Reason = "KernelUnknown"             // no kernel version for a precompiled driver
	ImageInvalid              Reason = "ImageInvalid"              // the policy's fields make no valid image reference
	OSNotSupported            Reason = "OSNotSupported"            // NVIDIA publishes no driver image for it
	PlatformNotServed         Reason = "PlatformNotServed"         // WSL2, a Jetson, or a host of vGPUs
	PrecompiledImageMissing   Reason = "PrecompiledImageMissing"   // the registry does not have it
	RegistryPending           Reason = "RegistryPending"           // the registry has not responded yet
	RegistryUnknown           Reason = "RegistryUnknown"           // the registry cannot be queried or gives no result
	RHCOSVersionUnknown       Reason = "RHCOSVersionUnknown"       // RHCOS without the label of its version
	DriverToolkitImageMissing Reason = "DriverToolkitImageMissing" // the ImageStream has no tag of the RHCOS version
	DriverToolkitUnknown      Reason = "DriverToolkitUnknown"      // the ImageStream has not been read

	// Of clusters whose ClusterPolicy leaves drivers to NVIDIADrivers:
	NoDriverSelected    Reason = "NoDriverSelected"    // no NVIDIADriver selects the nodes
	Conflict            Reason = "Conflict"            // several do
	SelectorInvalid     Reason = "SelectorInvalid"     // the NVIDIADriver's affinity cannot be read
	DriverTypeNotServed Reason = "DriverTypeNotServed" // it is for virtual machines
	DriversUnknown      Reason = "DriversUnknown"      // the NVIDIADrivers cannot be read
)

// Facts are the inputs of a choice besides policy and pool.
type Facts struct {
	OpenShift bool
	// Images are the repository and version of this product's images.
	Images v1.ImageSpec
	// Simulator is the default of the simulated driver's image; without a name it is that of Images.
	Simulator v1.ImageSpec
	// NVIDIA is NVIDIA's driver image, the default for the policy's.
	NVIDIA v1.ImageSpec
	// Toolkit returns the Driver Toolkit's image for a version of RHCOS; it may be nil.
	Toolkit func(rhcos string) (image string, ok bool)
	// ToolkitUnknown is why the ImageStream behind Toolkit has not been read; "" if it was.
	ToolkitUnknown string
	// Registry looks up an image; nil means that nothing is known of images.
	Registry func(image string) Presence
	// Deployed returns how the driver DaemonSet of an ID runs the image (Ours, Version). ok is
	// false if no such DaemonSet runs it. Deployed may be nil.
	Deployed func(id, image string) (owner Presence, ok bool)
}

// Presence is the result of an image lookup in a registry.
type Presence struct {
	State         PresenceState
	Ours          bool   // by a label of the image, it is a driver container of this product
	Version       string // of its driver, by the same label; "" if there is none
	Why           string // if Unknown: the cause; if Absent: reasons to doubt it; if Present: why its labels are unknown
	AccessProblem string // credentials or certificates that could not be used for the lookup
}

// PresenceState is the state of an image lookup.
type PresenceState int

// The states. The zero value means that there was no lookup yet.
const (
	Unasked PresenceState = iota
	Present
	Absent
	Unknown // the registry cannot be queried; Why has the cause
)
