// Package state says what belongs into the cluster: each state (operator/road has their
// names and order) is a pure function of the policy and the pools to objects.
package state

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/road"
)

// Input is all that the objects follow from.
type Input struct {
	Policy  *v1.ClusterPolicy
	Cluster Cluster
	// Drivers are the pools' choices. Several may have one ID: they are one DaemonSet.
	Drivers []driver.Choice
	// Injections are those in use: each has agents of its own.
	Injections []fleet.Injection
	// Keys are those of the ConfigMaps that ConfigMaps names, by ConfigMap; one that does
	// not exist is not in it.
	Keys map[string][]string
}

// Cluster is what the objects follow from beside the policy.
type Cluster struct {
	Namespace       string // of the operands
	OpenShift       bool
	HandOver        bool   // NVIDIA's operator runs: only nodes that were handed over are served
	ImageRepository string // of our images, where the policy names none: "gpuready"
	ImageVersion    string // their tag
}

// Object is one that belongs into the cluster.
type Object struct {
	State  road.State
	Object client.Object
	Digest string // of what is applied: hexadecimal SHA-256, as in the annotation gpuready.io/digest
}

// Problem is what of the policy could not be done as it says. Message names the field
// and the next action.
type Problem struct {
	State   road.State
	Reason  Reason
	Message string
}

// Reason is a problem in a word.
type Reason string

// The reasons of problems.
const (
	ImageMissing     Reason = "ImageMissing"         // an operand that is not ours has no image
	ImageForeign     Reason = "ImageForeign"         // NVIDIA's image for an operand that is ours
	ConfigMapMissing Reason = "ConfigMapMissing"     // a driver's configuration does not exist
	OSUnknown        Reason = "OSUnknown"            // where a driver's configuration goes in is not known
	FieldPassedOver  Reason = "FieldPassedOver"      // what the driver's image does not know
	VersionUnknown   Reason = "DriverVersionUnknown" // where built modules are kept cannot be said without it
	ValueInvalid     Reason = "ValueInvalid"         // what the schema accepts and Kubernetes would refuse
)

// Render returns the objects, ordered by state, kind and name, and the problems. The
// same input, in whatever order its lists are, gives the same bytes. It fails where the
// templates are broken, which tests exclude.
func Render(in Input) ([]Object, []Problem, error) {
	r, err := newRenderer(in)
	if err != nil {
		return nil, nil, err
	}
	for _, render := range []func() error{
		r.prerequisites, r.drivers, r.toolkits, r.plugins, r.validators, r.nvidiaDaemonSets,
	} {
		if err := render(); err != nil {
			return nil, nil, err
		}
	}
	slices.SortStableFunc(r.objects, compare)
	slices.SortFunc(r.problems, func(a, b Problem) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	return r.objects, slices.Compact(r.problems), nil
}

// stateOrder is that in which objects are applied.
func stateOrder() []road.State { return append(road.States(), road.Beside()...) }

func compare(a, b Object) int {
	if a.State != b.State {
		return slices.Index(stateOrder(), a.State) - slices.Index(stateOrder(), b.State)
	}
	key := func(o Object) string {
		return o.Object.GetObjectKind().GroupVersionKind().Kind + "/" + o.Object.GetName()
	}
	return strings.Compare(key(a), key(b))
}

// renderer collects what one Render makes.
type renderer struct {
	in         Input
	spec       *v1.ClusterPolicySpec
	injections []fleet.Injection // sorted, each once
	objects    []Object
	problems   []Problem
}

func newRenderer(in Input) (*renderer, error) {
	r := &renderer{in: in, injections: slices.Compact(slices.Sorted(slices.Values(in.Injections)))}
	return r, r.sanitize(&in.Policy.Spec)
}

func (r *renderer) problem(s road.State, reason Reason, message string) {
	r.problems = append(r.problems, Problem{s, reason, message})
}
