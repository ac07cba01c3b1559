package controller

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// desired is the state that the policy requires of the cluster.
type desired struct {
	policy   *v1.ClusterPolicy // nil if none is in force
	released bool              // there is no policy: nodes are released
	handOver bool              // NVIDIA's operator runs: only nodes that were handed over are served
	// elsewhere is the namespace in which another operator's operands serve the policy.
	// No objects are created beside them.
	elsewhere string
	err       error // why the rest is unknown

	operands []string         // enabled, as in nvidia.com/gpu.deploy.<operand>
	states   []progress.State // that a node has to reach
	unserved []string         // fields of the policy
	prebuilt []v1.PrebuiltStatus
	problems []state.Problem

	choices []driver.Choice               // the driver of each pool
	wanted  []apply.Object                // objects
	targets map[fleet.Pool]upgrade.Target // the driver that upgrades lead to
	sets    map[string]upgrade.Set        // DaemonSets of drivers that exist, by ID
	rolls   upgrade.Policy
}

// evaluate computes the desired state from the model and the survey.
func (c *Controller) evaluate() *desired {
	m := c.model
	s := &desired{handOver: m.handOver(), sets: m.sets()}
	s.policy, _ = m.inForce()
	if s.policy == nil {
		s.released = true
		return s
	}
	if s.elsewhere = m.servedElsewhere(s.policy); s.elsewhere != "" {
		s.err = fmt.Errorf("operands for ClusterPolicy %s run in namespace %s", s.policy.Name, s.elsewhere)
		return s
	}
	spec := &s.policy.Spec
	s.operands, s.states, s.unserved = enabled(spec), progress.States(spec), s.policy.Unserved()
	c.choose(s)
	if s.err = c.render(s); s.err != nil {
		return s
	}
	rolls, err := upgrade.ParsePolicy(spec.Driver.UpgradePolicy)
	if err != nil {
		// A policy that cannot be read upgrades nothing.
		s.problems = append(s.problems, state.Problem{State: progress.Driver, Reason: reasonUpgradePolicy, Message: err.Error()})
	} else {
		s.rolls = rolls
	}
	return s
}

// choose chooses each pool's driver, and looks up images in the registry where needed.
func (c *Controller) choose(s *desired) {
	m, spec := c.model, &s.policy.Spec
	var flaw string
	with := c.access(&spec.Driver)
	facts := driver.Facts{
		OpenShift:      m.openShift,
		Images:         v1.ImageSpec{Repository: c.Cluster.ImageRepository, Version: c.Cluster.ImageVersion},
		Toolkit:        func(rhcos string) (string, bool) { image, ok := m.toolkit[rhcos]; return image, ok },
		ToolkitUnknown: m.toolkitError,
		Registry: func(image string) driver.Presence {
			presence := c.registry.Lookup(image, with)
			flaw = max(flaw, presence.AccessProblem)
			return presence
		},
		Deployed: func(id, image string) (driver.Presence, bool) {
			set, there := s.sets[id]
			return driver.Presence{Ours: set.Ours, Version: set.Version}, there && set.Image == image
		},
	}
	s.choices = chooseAll(spec, c.survey.examples, facts)
	pushed := c.accessPrebuilt(&spec.Driver)
	s.prebuilt = m.prebuildStatus(func(image string) driver.Presence { return c.registry.Lookup(image, pushed) })
	c.registry.Prune()
	// For other drivers the registry only tells whose image it is; that fails silently.
	if flaw != "" && spec.Driver.Precompiled() {
		s.problems = append(s.problems, state.Problem{State: progress.Driver, Reason: reasonCertificates, Message: "spec.driver.certConfig.name: " + flaw})
	}
	sidecars := map[string]bool{}
	for id, set := range s.sets {
		sidecars[id] = set.Sidecar
	}
	driver.Try(s.choices, sidecars)
}

// rendering caches the last rendered objects and their inputs.
type rendering struct {
	input    state.Input
	version  string // of the policy's specification
	objects  []apply.Object
	digests  map[string]string // of the drivers' pods, by the driver's ID
	problems []state.Problem
	err      error
}

// render sets the wanted objects and the drivers that upgrades lead to. It renders the objects
// only if their inputs have changed.
func (c *Controller) render(s *desired) error {
	cluster := c.Cluster
	cluster.OpenShift, cluster.HandOver = c.model.openShift, s.handOver
	input := state.Input{Cluster: cluster, Drivers: s.choices, Injections: c.survey.injections, Keys: c.configMapKeys(&s.policy.Spec.Driver)}
	version := fmt.Sprint(s.policy.UID, "/", s.policy.Generation)
	if r := &c.rendered; r.version != version || !reflect.DeepEqual(r.input, input) {
		*r = newRendering(input, s.policy)
		r.version = version
	}
	r := c.rendered
	if r.err != nil {
		return fmt.Errorf("render the objects of ClusterPolicy %s: %w", s.policy.Name, r.err)
	}
	s.wanted, s.problems = r.objects, append(s.problems, r.problems...)
	s.targets = map[fleet.Pool]upgrade.Target{}
	for _, choice := range s.choices {
		target := upgrade.Target{ID: choice.ID, Name: choice.Name, Digest: r.digests[choice.ID]}
		target.Keep = choice.Problem != nil && choice.Problem.Keep || choice.ID != "" && target.Digest == ""
		s.targets[choice.Pool] = target
	}
	return nil
}

func newRendering(input state.Input, policy *v1.ClusterPolicy) rendering {
	r := rendering{input: input, digests: map[string]string{}}
	input.Policy = policy
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

// driversInUse returns a predicate for objects that are retained although they are no longer
// wanted: drivers that nodes still have.
func (s *desired) driversInUse(served map[string]bool) func(client.Object) bool {
	return func(o client.Object) bool {
		if s.policy == nil || o.GetLabels()[label.State] != string(progress.Driver) {
			return false
		}
		id, _ := driverOf(o)
		return served[id] || slices.ContainsFunc(s.choices, func(c driver.Choice) bool { return c.ID == id })
	}
}

// operands are the names of label.Deploy and the fields of a policy that enable them.
var operands = []struct {
	name    string
	enabled func(*v1.ClusterPolicySpec) bool
}{
	{label.DriverOperand, func(s *v1.ClusterPolicySpec) bool { return s.Driver.IsEnabled() }},
	{"container-toolkit", func(s *v1.ClusterPolicySpec) bool { return s.Toolkit.IsEnabled() }},
	{"device-plugin", func(s *v1.ClusterPolicySpec) bool { return s.DevicePlugin.IsEnabled() }},
	{"operator-validator", func(*v1.ClusterPolicySpec) bool { return true }},
	{"gpu-feature-discovery", func(s *v1.ClusterPolicySpec) bool { return s.GPUFeatureDiscovery.IsEnabled() }},
	{"dcgm", func(s *v1.ClusterPolicySpec) bool { return s.DCGM.IsEnabled() }},
	{"dcgm-exporter", func(s *v1.ClusterPolicySpec) bool { return s.DCGMExporter.IsEnabled() }},
	{"mig-manager", func(s *v1.ClusterPolicySpec) bool { return s.MIGManager.IsEnabled() }},
}

func enabled(spec *v1.ClusterPolicySpec) (names []string) {
	for _, o := range operands {
		if o.enabled(spec) {
			names = append(names, o.name)
		}
	}
	return names
}
