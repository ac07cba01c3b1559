package progress

import (
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/stage"
)

// States returns the states that a policy requires. Driver and toolkit are validated even if
// the policy does not install them, as somebody else may have.
func States(spec *v1.ClusterPolicySpec) []stage.State {
	all := []stage.State{stage.Prerequisites}
	add := func(is bool, names ...stage.State) {
		if is {
			all = append(all, names...)
		}
	}
	add(spec.Driver.IsEnabled(), stage.Driver)
	add(true, stage.DriverValidation)
	add(spec.Toolkit.IsEnabled(), stage.Toolkit)
	add(true, stage.ToolkitValidation)
	add(spec.DevicePlugin.IsEnabled(), stage.DevicePlugin, stage.PluginValidation)
	add(spec.GPUFeatureDiscovery.IsEnabled(), stage.FeatureLabels)
	return append(all, stage.DCGM, stage.DCGMExporter, stage.MIGManager)
}
