package progress

import (
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/state"
)

// States are those that a policy asks for. What it does not ask for may be there all the
// same, by somebody else: a driver and a toolkit are validated whoever installed them.
func States(spec *v1.ClusterPolicySpec) []state.Name {
	all := []state.Name{state.Prerequisites}
	add := func(is bool, names ...state.Name) {
		if is {
			all = append(all, names...)
		}
	}
	add(spec.Driver.IsEnabled(), state.Driver)
	add(true, state.DriverValidation)
	add(spec.Toolkit.IsEnabled(), state.Toolkit)
	add(true, state.ToolkitValidation)
	add(spec.DevicePlugin.IsEnabled(), state.DevicePlugin, state.PluginValidation)
	add(spec.GPUFeatureDiscovery.IsEnabled(), state.FeatureLabels)
	return append(all, state.DCGM, state.DCGMExporter, state.MIGManager)
}
