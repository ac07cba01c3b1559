package controller

import (
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// chooseDrivers chooses each pool's driver, and looks up images in the registry where needed.
func (c *Controller) chooseDrivers(s *desired) {
	m, spec := c.model, &s.policy.Spec
	var accessProblem string
	facts := func(of *v1.ClusterPolicySpec) driver.Facts {
		access := c.access(&of.Driver)
		return driver.Facts{
			OpenShift:      m.openShift,
			Images:         v1.ImageSpec{Repository: c.Cluster.ImageRepository, Version: c.Cluster.ImageVersion},
			Simulator:      c.Cluster.Image("driver-simulator"),
			NVIDIA:         c.Cluster.NVIDIA["driver"],
			Toolkit:        func(rhcos string) (string, bool) { image, ok := m.toolkit[rhcos]; return image, ok },
			ToolkitUnknown: m.toolkitError,
			Registry: func(image string) driver.Presence {
				presence := c.registry.Lookup(image, access)
				// Whether a precompiled driver exists depends on the registry. Of another driver it
				// only tells whose image it is, and a failure has no consequence.
				if of.Driver.Precompiled() {
					accessProblem = max(accessProblem, presence.AccessProblem)
				}
				return presence
			},
			Deployed: func(id, image string) (driver.Presence, bool) {
				set, there := s.deployed(id, image)
				return driver.Presence{Ours: set.Ours, Version: set.Version}, there
			},
		}
	}
	s.choices = chooseAll(m.selection, spec, c.survey.examples, facts)
	s.unreadDrivers = m.selection.Unread()
	pushed := c.accessPrebuilt(&spec.Driver)
	s.prebuilt = m.prebuildStatus(func(image string) driver.Presence { return c.registry.Lookup(image, pushed) })
	c.registry.Prune()
	if accessProblem != "" {
		s.problems = append(s.problems, state.Problem{State: progress.Driver, Reason: reasonCertificates, Message: "spec.driver.certConfig.name: " + accessProblem})
	}
	sidecars := map[string]bool{}
	for id, set := range s.driverSets {
		sidecars[id] = set.Sidecar
	}
	driver.Try(s.choices, sidecars)
}

// deployed returns the driver DaemonSet that runs an image: that of an ID or, as an NVIDIADriver may
// take over its driver, another one.
func (s *desired) deployed(id, image string) (set upgrade.Set, there bool) {
	if set, there = s.driverSets[id]; there && set.Image == image {
		return set, true
	}
	for _, other := range slices.Sorted(maps.Keys(s.driverSets)) {
		if set = s.driverSets[other]; set.Image == image && image != "" {
			return set, true
		}
	}
	return upgrade.Set{}, false
}

// chooseAll chooses the driver of each pool. example names a node of each.
func chooseAll(selection *driver.Selection, spec *v1.ClusterPolicySpec, example map[fleet.Pool]string, facts func(*v1.ClusterPolicySpec) driver.Facts) []driver.Choice {
	var choices []driver.Choice
	for pool, node := range example {
		choices = append(choices, selection.Choose(spec, pool, node, facts))
	}
	slices.SortFunc(choices, func(a, b driver.Choice) int { return strings.Compare(a.Pool.String(), b.Pool.String()) })
	return choices
}

// objectsInUse returns a predicate for objects that are retained although they are no longer
// wanted: drivers that nodes still have, and the DRA driver while nodes serve by it.
func (s *desired) objectsInUse(served map[string]bool) func(client.Object) bool {
	return func(o client.Object) bool {
		switch state := o.GetLabels()[label.State]; {
		case s.policy == nil:
			return false
		case state == string(progress.DRADriver):
			return s.keepDRADriver
		case state != string(progress.Driver):
			return false
		}
		id, _ := driverOf(o)
		return s.unreadDrivers || served[id] || slices.ContainsFunc(s.choices, func(c driver.Choice) bool { return c.ID == id })
	}
}

// driverOf returns the ID of the driver that a DaemonSet installs and its pods' digest, and
// "" for other objects.
func driverOf(o client.Object) (id, digest string) {
	if d := daemonSet(o); d != nil {
		set := upgrade.ObserveSet(d)
		return set.ID, set.Digest
	}
	return "", ""
}

// driverSets returns the DaemonSets that install drivers, by ID.
func (m *model) driverSets() map[string]upgrade.Set {
	all := map[string]upgrade.Set{}
	for _, o := range m.objects {
		if o.GetLabels()[label.State] != string(progress.Driver) {
			continue
		}
		if d := daemonSet(o); d != nil {
			set := upgrade.ObserveSet(d)
			all[set.ID] = set
		}
	}
	return all
}

// daemonSet returns an object as a DaemonSet, or nil if it is none.
func daemonSet(o client.Object) *appsv1.DaemonSet {
	if d, is := o.(*appsv1.DaemonSet); is {
		return d
	}
	u, is := o.(runtime.Unstructured)
	if !is || o.GetObjectKind().GroupVersionKind() != daemonSetKind {
		return nil
	}
	var d appsv1.DaemonSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), &d); err != nil {
		return nil
	}
	return &d
}
