// Package road names the states that bring a node to GPUs that can be used, in their
// order. It knows no more, so that who only tells of states links nothing that renders
// them.
package road

// State is a state's name: a step of the road, or one beside it.
type State string

// The states in their order. Nothing waits for DCGM, DCGMExporter and MIGManager.
const (
	Prerequisites     State = "prerequisites"
	Driver            State = "driver"
	DriverValidation  State = "driver-validation"
	Toolkit           State = "toolkit"
	ToolkitValidation State = "toolkit-validation"
	DevicePlugin      State = "device-plugin"
	PluginValidation  State = "plugin-validation"
	FeatureLabels     State = "feature-labels"
	DCGM              State = "dcgm"
	DCGMExporter      State = "dcgm-exporter"
	MIGManager        State = "mig-manager"
)

// States are those that a node goes through until its GPUs can be used, in order.
func States() []State {
	return []State{Prerequisites, Driver, DriverValidation, Toolkit, ToolkitValidation, DevicePlugin, PluginValidation, FeatureLabels}
}

// Beside are those that nothing waits for.
func Beside() []State { return []State{DCGM, DCGMExporter, MIGManager} }
