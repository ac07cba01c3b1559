package progress

import (
	"slices"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// State is the name of a state: a step of the sequence through which a node gets usable GPUs, or one
// beside it.
type State string

// The states in their order. Nothing waits for DCGM, DCGMExporter and MIGManager, and for DRADriver
// only nodes that serve ResourceClaims.
const (
	Prerequisites     State = "prerequisites"
	Driver            State = "driver"
	DriverValidation  State = "driver-validation"
	Toolkit           State = "toolkit"
	ToolkitValidation State = "toolkit-validation"
	DevicePlugin      State = "device-plugin"
	PluginValidation  State = "plugin-validation"
	FeatureLabels     State = "feature-labels"
	DRADriver         State = "dra-driver"
	DCGM              State = "dcgm"
	DCGMExporter      State = "dcgm-exporter"
	MIGManager        State = "mig-manager"
)

// Sequence returns the states that a node goes through until its GPUs can be used, in order.
func Sequence() []State {
	return []State{Prerequisites, Driver, DriverValidation, Toolkit, ToolkitValidation, DevicePlugin, PluginValidation, FeatureLabels}
}

// Optional returns the states beside the sequence.
func Optional() []State { return []State{DRADriver, DCGM, DCGMExporter, MIGManager} }

func (s State) optional() bool { return slices.Contains(Optional(), s) }

// States returns the states that a policy requires, in their order. Driver and toolkit are validated even if
// the policy does not install them, as somebody else may have.
func States(spec *v1.ClusterPolicySpec) []State {
	all := []State{Prerequisites}
	add := func(is bool, names ...State) {
		if is {
			all = append(all, names...)
		}
	}
	add(spec.Driver.IsEnabled(), Driver)
	add(true, DriverValidation)
	add(spec.Toolkit.IsEnabled(), Toolkit)
	add(true, ToolkitValidation)
	add(spec.DevicePlugin.IsEnabled(), DevicePlugin, PluginValidation)
	add(spec.GPUFeatureDiscovery.IsEnabled(), FeatureLabels)
	add(spec.DRADriver.IsEnabled(), DRADriver)
	return append(all, DCGM, DCGMExporter, MIGManager)
}
