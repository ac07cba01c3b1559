// Package state renders the objects that belong in the cluster. Each state (operator/progress has
// their names and order) is a pure function from the policy and the pools to objects.
package state

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/progress"
)

// Input holds everything that the objects depend on.
type Input struct {
	Policy  *v1.ClusterPolicy
	Cluster Cluster
	// Drivers are the pools' choices. Choices with the same ID share one DaemonSet.
	Drivers []driver.Choice
	// Specs are the policy's spec with the driver of an NVIDIADriver, by the NVIDIADriver's name.
	Specs map[string]*v1.ClusterPolicySpec
	// Injections are the ways of injection in use: each has its own agents.
	Injections []fleet.Injection
	// Handlers are the container runtime's handlers that all nodes with an injection have; nil:
	// they are not known.
	Handlers map[fleet.Injection][]string
	// Classes are the RuntimeClasses of others, with their handlers.
	Classes map[string]string
	// DeviceClasses are the names of DeviceClasses that are not the operator's.
	DeviceClasses []string
	// Keys are the keys of the existing ConfigMaps that ConfigMaps names, by ConfigMap.
	Keys map[string][]string
}

// Cluster holds the inputs besides the policy.
type Cluster struct {
	Namespace       string // of the operands
	OpenShift       bool
	HandOver        bool   // NVIDIA's operator runs: only nodes that were handed over are served
	ImageRepository string // default repository of our images: "gpuready"
	ImageVersion    string // their tag
	// Pinned holds those of our images that have another default, by name ("toolkit"): in a release,
	// each has its digest as its version.
	Pinned map[string]v1.ImageSpec
	// ServiceMonitors means that the cluster has the prometheus-operator's kind.
	ServiceMonitors bool
	// DRA means that the API server serves ResourceSlices and DeviceClasses as they are since
	// Kubernetes 1.34.
	DRA bool
	// NVIDIA holds the images of NVIDIA's operands that the policy does not name.
	NVIDIA map[string]v1.ImageSpec
}

// Object is an object that belongs in the cluster.
type Object struct {
	State  progress.State
	Object client.Object
	Digest string // of the applied content: hexadecimal SHA-256, as in the annotation gpuready.io/digest
}

// Problem is a part of the policy that could not be carried out as specified. Message names
// the field and the next action.
type Problem struct {
	State   progress.State
	Reason  Reason
	Message string
	// NVIDIADriver is the name of the NVIDIADriver whose fields it is about; "": the policy's.
	NVIDIADriver string
	// Unserved means that nothing failed: a field has no effect in this cluster or with this
	// driver. Message is a line of status.unserved then, and there is no reason.
	Unserved bool
}

// Reason is a problem's reason in one word.
type Reason string

// The reasons of problems.
const (
	ConfigMapMissing Reason = "ConfigMapMissing"     // a driver's configuration does not exist
	OSUnknown        Reason = "OSUnknown"            // the OS' paths for a driver's configuration are unknown
	FieldPassedOver  Reason = "FieldPassedOver"      // the driver's image does not support the field
	VersionUnknown   Reason = "DriverVersionUnknown" // built modules need the driver's version for their tag
	ValueInvalid     Reason = "ValueInvalid"         // accepted by the schema, but invalid for Kubernetes
	DRAUnsupported   Reason = "DRAUnsupported"       // the cluster cannot have the DRA driver
	DRAIncomplete    Reason = "DRAIncomplete"        // the DRA driver lacks what it needs of the policy
)

// Render returns the objects, ordered by state, kind and name, and the problems. The same
// input gives the same bytes, whatever the order of its lists. It fails only if the templates
// are broken, which tests exclude.
func Render(in Input) ([]Object, []Problem, error) {
	r, err := newRenderer(in)
	if err != nil {
		return nil, nil, err
	}
	for _, render := range []func() error{
		r.prerequisites, r.drivers, r.toolkits, r.plugins, r.draDriver, r.validators, r.nvidiaDaemonSets,
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

// stateOrder returns the order in which the states' objects are applied.
func stateOrder() []progress.State { return append(progress.Sequence(), progress.Optional()...) }

func compare(a, b Object) int {
	if a.State != b.State {
		return slices.Index(stateOrder(), a.State) - slices.Index(stateOrder(), b.State)
	}
	key := func(o Object) string {
		return o.Object.GetObjectKind().GroupVersionKind().Kind + "/" + o.Object.GetName()
	}
	return strings.Compare(key(a), key(b))
}

// renderer collects the results of one Render.
type renderer struct {
	in         Input
	spec       *v1.ClusterPolicySpec
	injections []fleet.Injection // sorted, without duplicates
	objects    []Object
	problems   []Problem
}

func newRenderer(in Input) (*renderer, error) {
	r := &renderer{in: in, injections: slices.Compact(slices.Sorted(slices.Values(in.Injections)))}
	return r, r.sanitize(&in.Policy.Spec)
}

// reportUnserved reports a field that has no effect, with the reason and the next action.
func (r *renderer) reportUnserved(field, why string) {
	r.unserved(field + ": " + why)
}

// unserved reports a setting that is not followed as written.
func (r *renderer) unserved(line string) {
	r.problems = append(r.problems, Problem{State: progress.Prerequisites, Message: line, Unserved: true})
}

func (r *renderer) problem(s progress.State, reason Reason, message string) {
	r.problems = append(r.problems, Problem{State: s, Reason: reason, Message: message})
}
