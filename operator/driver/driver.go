// Package driver chooses how each pool of nodes gets its driver. It is pure: what
// the registry and the cluster's ImageStreams have is handed in.
package driver

import (
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
)

// Variant is a way to get a driver onto a node.
type Variant string

// The variants.
const (
	None          Variant = ""              // spec.driver.enabled is false: the host has one
	Container     Variant = "container"     // a driver container, by operating system
	DriverToolkit Variant = "driverToolkit" // built with OpenShift's Driver Toolkit, by RHCOS version
	Precompiled   Variant = "precompiled"   // loaded, by kernel
	Simulated     Variant = "simulated"
)

// Choice is how a pool gets its driver. Pools whose Choices have one ID are served by one
// DaemonSet, and those Choices differ in Pool and Problem only.
type Choice struct {
	Pool     fleet.Pool
	Variant  Variant
	ID       string            // value of the Node label gpuready.io/driver, at most 63 characters
	Name     string            // of the DaemonSet
	Image    string            // of the driver container
	Sidecar  string            // of the Driver Toolkit's container; "": OpenShift has none
	Selector map[string]string // Node labels that the DaemonSet is confined by, apart from gpuready.io/driver
	// Ours means that Image is a driver container of this product, which is run by another
	// contract than NVIDIA's.
	Ours    bool     `json:",omitempty"`
	Version string   `json:",omitempty"` // of the driver in an image that is ours; "": not known
	Guessed bool     `json:",omitempty"` // it is taken for NVIDIA's, as the registry did not say whose it is
	Problem *Problem // why it is not the one that the policy asks for, or none at all
}

// Problem is why a pool does not get the driver that the policy asks for.
type Problem struct {
	Reason  Reason
	Message string // names the exact tag, version and a node, and the next action
	// Keep: what serves the pool's nodes now goes on doing so, and the Choice is not rolled out.
	Keep bool
	// Try: where the pool has nothing to lose there is nothing to keep, and the Choice may be
	// rolled out all the same: the kubelet will tell. It goes with Keep; see the function.
	Try bool
}

// Reason is why, in one word, as conditions have it.
type Reason string

// The reasons.
const (
	OSUnknown                 Reason = "OSUnknown"                 // no OS tag
	KernelUnknown             Reason = "KernelUnknown"             // no kernel version, and the driver is by kernel
	ImageInvalid              Reason = "ImageInvalid"              // what the policy names makes no image
	PrecompiledImageMissing   Reason = "PrecompiledImageMissing"   // the registry does not have it
	RegistryPending           Reason = "RegistryPending"           // the registry is being asked
	RegistryUnknown           Reason = "RegistryUnknown"           // the registry cannot be asked, or does not say
	RHCOSVersionUnknown       Reason = "RHCOSVersionUnknown"       // RHCOS, without the label of its version
	DriverToolkitImageMissing Reason = "DriverToolkitImageMissing" // the ImageStream has no tag of the RHCOS version
	DriverToolkitUnknown      Reason = "DriverToolkitUnknown"      // the ImageStream has not been read
)

// Facts are what is known apart from policy and pool.
type Facts struct {
	OpenShift bool
	// Images are the operator's own: repository and version of what the policy leaves out.
	Images v1.ImageSpec
	// Toolkit returns the Driver Toolkit's image for a version of RHCOS. nil: there is none.
	Toolkit func(rhcos string) (image string, ok bool)
	// ToolkitUnknown is why the ImageStream that Toolkit knows has not been read; "": it was.
	ToolkitUnknown string
	// Registry says whether an image exists, and whether it is ours. nil: nobody has asked.
	Registry func(image string) Presence
	// Deployed returns as what the driver DaemonSet of that ID runs the image (Ours, Version);
	// ok is false where no such DaemonSet runs it. nil: there is none.
	Deployed func(id, image string) (as Presence, ok bool)
}

// Presence is what a registry says of an image.
type Presence struct {
	State   PresenceState
	Ours    bool   // a label of the image says that it is a driver container of this product
	Version string // of its driver, by the same label; "": it does not tell
	Why     string // where it is Unknown; where it is Absent, what speaks against that; where it is Present, why its labels are not known
	Flaw    string // what the registry was to be asked with and was not, whatever it said
}

// PresenceState is whether a registry has an image.
type PresenceState int

// The zero value: nobody has asked yet.
const (
	Unasked PresenceState = iota
	Present
	Absent
	Unknown // the registry cannot be asked; Why says so
)
