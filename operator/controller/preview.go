package controller

import (
	"maps"
	"slices"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/state"
)

// Preview holds what a policy renders for some nodes without a cluster. What only a cluster
// or a registry knows is assumed to be as the policy needs it.
type Preview struct {
	Objects  []state.Object
	Choices  []driver.Choice
	Problems []state.Problem
	Unserved []string // lines about fields without effect, as in the policy's status
}

// NewPreview returns the Preview. If ours is true, driver images are assumed to be this product's
// driver containers. NVIDIADrivers are used if the policy leaves drivers to them.
func NewPreview(policy *v1.ClusterPolicy, nodes []*fleet.Node, cluster state.Cluster, ours bool, drivers ...*v1alpha1.NVIDIADriver) (Preview, error) {
	cluster.ServiceMonitors, cluster.DRA = true, true
	var selection *driver.Selection
	if policy.Spec.Driver.UsesNVIDIADrivers() {
		selection = driver.NewSelection(&policy.Spec, drivers, "")
		selected := make([]*fleet.Node, 0, len(nodes))
		for _, n := range nodes {
			selected = append(selected, n.WithDrivers(selection.Of(n.Name, n.AllLabels)))
		}
		nodes = selected
	}
	survey := surveyNodes(slices.Values(nodes), cluster.HandOver)
	facts := driver.Facts{
		OpenShift: cluster.OpenShift,
		Images:    v1.ImageSpec{Repository: cluster.ImageRepository, Version: cluster.ImageVersion},
		Simulator: cluster.Image("driver-simulator"),
		NVIDIA:    cluster.NVIDIA["driver"],
		Toolkit:   func(rhcos string) (string, bool) { return "driver-toolkit:" + rhcos, true },
		Registry:  func(string) driver.Presence { return driver.Presence{State: driver.Present, Ours: ours} },
	}
	specs := selection.Specs()
	p := Preview{Choices: chooseAll(selection, &policy.Spec, survey.examples, func(*v1.ClusterPolicySpec) driver.Facts { return facts })}
	keys := map[string][]string{}
	for _, spec := range append(slices.Collect(maps.Values(specs)), &policy.Spec) {
		for _, name := range state.ConfigMaps(&spec.Driver) {
			keys[name] = nil
		}
	}
	var err error
	var problems []state.Problem
	p.Objects, problems, err = state.Render(state.Input{Policy: policy, Cluster: cluster, Drivers: p.Choices, Specs: specs, Injections: survey.injections, Handlers: survey.handlers, Keys: keys})
	p.Problems, p.Unserved = splitProblems(problems)
	p.Unserved = slices.Sorted(slices.Values(slices.Concat(policy.Unserved(), state.Replaced(&policy.Spec, cluster), p.Unserved)))
	return p, err
}
