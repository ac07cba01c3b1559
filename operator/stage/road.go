// Package stage names the states through which a node gets usable GPUs, in their order. It
// contains nothing else, so that programs that only report states do not link the code that
// renders them.
package stage

// State is the name of a state: a step of the sequence, or one beside it.
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

// States returns the states that a node goes through until its GPUs can be used, in order.
func States() []State {
	return []State{Prerequisites, Driver, DriverValidation, Toolkit, ToolkitValidation, DevicePlugin, PluginValidation, FeatureLabels}
}

// Optional returns the states that nothing waits for.
func Optional() []State { return []State{DCGM, DCGMExporter, MIGManager} }
