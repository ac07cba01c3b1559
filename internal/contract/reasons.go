// Package contract has the table of reasons. A reason is one CamelCase word for why something is
// not ready, the same in state files, conditions, Events, logs and metrics. Its meaning and the next
// action stand here and nowhere else: docs/reasons.md is generated from the table.
package contract

import "slices"

//go:generate go test -tags grpcnotrace -run ^TestThePageOfReasonsIsMadeOfTheTable$ ../../docs -update

// Component is a component that gives reasons.
type Component string

// The components, by their names for people.
const (
	Driver       Component = "driver"
	Toolkit      Component = "toolkit"
	DevicePlugin Component = "device plugin"
	DRADriver    Component = "DRA driver"
	Validator    Component = "validator"
	Preflight    Component = "preflight"
	Operator     Component = "operator"
)

// Reason explains a reason of a component. Meaning and Next are Markdown without links; they name
// pages as docs/NAME.md.
type Reason struct {
	Reason  string
	By      Component
	Of      string // what has the reason, such as "a device that is unhealthy"; "": anything of the component
	Meaning string
	Next    string // what a person should do
}

// What PlatformNotServed means, whichever component says so.
const (
	platformMeaning = "the node is of a platform that is not served: WSL2, a Jetson (Tegra), or a host with NVIDIA's vGPU manager"
	platformNext    = "keep gpuready away: label the node `nvidia.com/gpu.deploy.operands=false`; see docs/support.md"
)

// group has the reasons of a component that belong together. Its rows have no By and no Of.
type group struct {
	by   Component
	of   string
	rows []Reason
}

// Reasons returns all reasons, in the order of the components. A reason that several components give
// is in it once for each.
func Reasons() []Reason {
	groups := slices.Concat(driverReasons, toolkitReasons, devicePluginReasons, draReasons, validatorReasons, preflightReasons,
		operatorReasons)
	var all []Reason
	for _, g := range groups {
		for _, r := range g.rows {
			r.By, r.Of = g.by, g.of
			all = append(all, r)
		}
	}
	return all
}
