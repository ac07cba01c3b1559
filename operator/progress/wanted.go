package progress

import (
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/road"
)

// States returns the states that a policy requires. Driver and toolkit are validated even if
// the policy does not install them, as somebody else may have.
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
