package progress

import (
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/road"
)

// States are those that a policy asks for. What it does not ask for may be there all the
// same, by somebody else: a driver and a toolkit are validated whoever installed them.
func States(spec *v1.ClusterPolicySpec) []road.State {
	all := []road.State{road.Prerequisites}
	add := func(is bool, names ...road.State) {
		if is {
			all = append(all, names...)
		}
	}
	add(spec.Driver.IsEnabled(), road.Driver)
	add(true, road.DriverValidation)
	add(spec.Toolkit.IsEnabled(), road.Toolkit)
	add(true, road.ToolkitValidation)
	add(spec.DevicePlugin.IsEnabled(), road.DevicePlugin, road.PluginValidation)
	add(spec.GPUFeatureDiscovery.IsEnabled(), road.FeatureLabels)
	return append(all, road.DCGM, road.DCGMExporter, road.MIGManager)
}
