package controller

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// rendering caches the last rendered objects and their inputs.
type rendering struct {
	input    state.Input
	version  string // of the policy's specification
	objects  []apply.Object
	digests  map[string]string // of the drivers' pods, by the driver's ID
	problems []state.Problem
	err      error
}

// renderObjects sets the wanted objects and the drivers that upgrades lead to. It renders the objects
// only if their inputs have changed.
func (c *Controller) renderObjects(s *desired) error {
	cluster := c.Cluster
	cluster.OpenShift, cluster.HandOver, cluster.ServiceMonitors, cluster.DRA = c.model.openShift, s.placeByHandOver, c.model.serviceMonitors, c.model.dra
	input := state.Input{Cluster: cluster, Drivers: s.choices, Injections: c.survey.injections, Handlers: c.survey.handlers, Classes: c.model.foreignClasses(), Keys: c.configMapKeys(&s.policy.Spec.Driver), DeviceClasses: c.model.foreignDeviceClasses()}
	specs := c.model.selection.Specs()
	for _, spec := range specs {
		maps.Copy(input.Keys, c.configMapKeys(&spec.Driver))
	}
	version := fmt.Sprint(s.policy.UID, "/", s.policy.Generation, "/", c.model.selectedBy)
	if r := &c.rendered; r.version != version || !reflect.DeepEqual(r.input, input) {
		*r = newRendering(input, s.policy, specs)
		r.version = version
	}
	r := c.rendered
	if r.err != nil {
		return fmt.Errorf("render the objects of ClusterPolicy %s: %w", s.policy.Name, r.err)
	}
	problems, unserved := splitProblems(r.problems)
	s.unservedOf = map[string][]string{}
	for _, p := range r.problems {
		if p.Unserved && p.NVIDIADriver != "" {
			s.unservedOf[p.NVIDIADriver] = append(s.unservedOf[p.NVIDIADriver], strings.TrimPrefix(p.Message, driver.FieldsOf(p.NVIDIADriver, "")))
		}
	}
	s.objects, s.problems, s.unserved = r.objects, append(s.problems, problems...), append(s.unserved, unserved...)
	s.targets = map[fleet.Pool]upgrade.Target{}
	for _, choice := range s.choices {
		target := upgrade.Target{ID: choice.ID, Name: choice.Name, Digest: r.digests[choice.ID]}
		target.Keep = choice.Problem != nil && choice.Problem.Keep || choice.ID != "" && target.Digest == ""
		s.targets[choice.Pool] = target
	}
	return nil
}

// splitProblems separates the failures from the lines about fields without effect.
func splitProblems(all []state.Problem) (failures []state.Problem, unserved []string) {
	for _, p := range all {
		if p.Unserved {
			unserved = append(unserved, p.Message)
		} else {
			failures = append(failures, p)
		}
	}
	return failures, unserved
}

func newRendering(input state.Input, policy *v1.ClusterPolicy, specs map[string]*v1.ClusterPolicySpec) rendering {
	r := rendering{input: input, digests: map[string]string{}}
	input.Policy, input.Specs = policy, specs
	var objects []state.Object
	objects, r.problems, r.err = state.Render(input)
	for _, o := range objects {
		r.objects = append(r.objects, apply.Object{Object: o.Object, Digest: o.Digest})
		if o.State == progress.Driver {
			id, digest := driverOf(o.Object)
			r.digests[id] = digest
		}
	}
	return r
}

// configMapKeys returns the keys of the ConfigMaps that the driver's spec names.
func (c *Controller) configMapKeys(spec *v1.DriverSpec) map[string][]string {
	keys := map[string][]string{}
	for _, name := range state.ConfigMaps(spec) {
		if have := c.model.configMaps[name]; have != nil {
			all := slices.Collect(maps.Keys(have.Data))
			keys[name] = slices.Sorted(slices.Values(slices.AppendSeq(all, maps.Keys(have.BinaryData))))
		}
	}
	return keys
}
