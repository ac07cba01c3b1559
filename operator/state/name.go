// Package state says what belongs into the cluster: each state is a pure function of
// the policy and the pools to objects.
package state

// Name is that of a state. States come in an order, and each waits for those before it.
type Name string

// The states in their order. Nothing waits for DCGM, DCGMExporter and MIGManager.
const (
	Prerequisites     Name = "prerequisites"
	Driver            Name = "driver"
	DriverValidation  Name = "driver-validation"
	Toolkit           Name = "toolkit"
	ToolkitValidation Name = "toolkit-validation"
	DevicePlugin      Name = "device-plugin"
	PluginValidation  Name = "plugin-validation"
	FeatureLabels     Name = "feature-labels"
	DCGM              Name = "dcgm"
	DCGMExporter      Name = "dcgm-exporter"
	MIGManager        Name = "mig-manager"
)

// Road are the states that a node goes through until its GPUs can be used, in order.
func Road() []Name {
	return []Name{Prerequisites, Driver, DriverValidation, Toolkit, ToolkitValidation, DevicePlugin, PluginValidation, FeatureLabels}
}
