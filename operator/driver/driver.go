// Package driver chooses how each pool of nodes gets its driver. It is pure: what
// the registry and the cluster's ImageStreams have is handed in.
package driver

import (
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

// Choice is how a pool gets its driver.
type Choice struct {
	Pool     fleet.Pool
	Variant  Variant
	ID       string            // value of the Node label gpuready.io/driver, at most 63 characters
	Name     string            // of the DaemonSet
	Image    string            // of the driver container
	Sidecar  string            // of the Driver Toolkit's container
	Selector map[string]string // Node labels that the DaemonSet is confined by, apart from gpuready.io/driver
	Problem  *Problem          // why it is not the one that the policy asks for, or none at all
}

// Problem is why a pool does not get the driver that the policy asks for.
type Problem struct {
	Reason  string // "PrecompiledImageMissing", "DriverToolkitImageMissing", "OSUnknown", "RegistryUnreachable", …
	Message string // names the exact tag, version and a node, and the next action
	Keep    bool   // what serves the pool now goes on doing so
}

// Presence is what a registry says of an image.
type Presence struct {
	State PresenceState
	Why   string // where it is Unknown
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
