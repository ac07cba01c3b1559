// Package step defines the steps from a requested node to a running GPU workload. It tracks
// when each node reaches each step, as the Kubernetes API shows it. The package does no
// I/O: a Tracker gets changes and returns timelines.
//
// The cluster need not run gpuready. Pods of NVIDIA's stack, conditions, labels and Events
// show the same steps.
package step

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// ID names a step, also in reports.
type ID string

// The steps, in the order in which a node takes them.
const (
	Asked             ID = "asked"
	Registered        ID = "registered"
	Ready             ID = "ready"
	Labelled          ID = "labelled"
	DriverScheduled   ID = "driver-scheduled"
	DriverPulled      ID = "driver-pulled"
	DriverStarted     ID = "driver-started"
	DriverReady       ID = "driver-ready"
	ToolkitReady      ID = "toolkit-ready"
	PluginReady       ID = "plugin-ready"
	Capacity          ID = "capacity"
	Allocatable       ID = "allocatable"
	Validated         ID = "validated"
	WorkloadScheduled ID = "workload-scheduled"
	WorkloadPulled    ID = "workload-pulled"
	WorkloadStarted   ID = "workload-started"
	FirstResult       ID = "first-result"
)

// Step describes a step for people.
type Step struct {
	ID    ID
	Title string // a few words
	From  string // what in the API shows that the step was reached
	// Aside marks a step that a workload does not wait for.
	Aside bool
}

// Steps returns the steps in their order. A step begins when all steps before it that are
// not Aside have ended.
func Steps() []Step {
	return []Step{
		{ID: Asked, Title: "asked for", From: "the request that this program sends"},
		{ID: Registered, Title: "node registered", From: "the Node exists; after a reboot: status.nodeInfo.bootID is another"},
		{ID: Ready, Title: "node Ready", From: "the Node's condition Ready"},
		{ID: Labelled, Title: "node labelled", From: "the Node's label of a PCI device 10de (NFD), or nvidia.com/gpu.present"},
		{ID: DriverScheduled, Title: "driver pod scheduled", From: "the driver pod's condition PodScheduled"},
		{ID: DriverPulled, Title: "driver image pulled", From: "the last Event Pulled of the driver pod before its container started"},
		{ID: DriverStarted, Title: "driver started", From: "the driver container runs"},
		{ID: DriverReady, Title: "driver ready", From: "the driver pod's condition Ready"},
		{ID: ToolkitReady, Title: "toolkit ready", From: "the toolkit pod's condition Ready"},
		{ID: PluginReady, Title: "plugin registered", From: "the device plugin pod's condition Ready"},
		{ID: Capacity, Title: "capacity", From: "the Node's status.capacity of the resource is above 0"},
		{ID: Allocatable, Title: "allocatable", From: "the Node's status.allocatable of the resource is above 0"},
		{ID: Validated, Title: "validated", From: "the Node's condition GPUReady where it has one, else the validator pod's condition Ready", Aside: true},
		{ID: WorkloadScheduled, Title: "workload scheduled", From: "the workload pod's condition PodScheduled"},
		{ID: WorkloadPulled, Title: "workload image pulled", From: "the last Event Pulled of the workload pod before its container started"},
		{ID: WorkloadStarted, Title: "workload started", From: "the workload's container runs"},
		{ID: FirstResult, Title: "first result", From: "the workload's container ended with 0, or its log has what --result names"},
	}
}

// Find returns the step with an ID.
func Find(id ID) (Step, bool) {
	all := Steps()
	i := slices.IndexFunc(all, func(s Step) bool { return s.ID == id })
	if i < 0 {
		return Step{}, false
	}
	return all[i], true
}

// Operand is a part of a GPU stack that runs as a pod on each node.
type Operand string

// The operands whose pods show steps.
const (
	Driver    Operand = "driver"
	Toolkit   Operand = "toolkit"
	Plugin    Operand = "plugin"
	Validator Operand = "validator"
)

// Operands returns the operands in the order of the steps.
func Operands() []Operand { return []Operand{Driver, Toolkit, Plugin, Validator} }

// Selectors holds the label selectors of each operand's pods.
type Selectors map[Operand][]labels.Selector

// DefaultSelectors match the pods of gpuready, of NVIDIA's operator and of the chart
// and manifest of NVIDIA's device plugin.
func DefaultSelectors() Selectors {
	return Selectors{
		Driver:    parseSelectors("app=nvidia-driver-daemonset", "app.kubernetes.io/component=nvidia-driver"),
		Toolkit:   parseSelectors("app=nvidia-container-toolkit-daemonset"),
		Plugin:    parseSelectors("app=nvidia-device-plugin-daemonset", "app.kubernetes.io/name=nvidia-device-plugin", "name=nvidia-device-plugin-ds"),
		Validator: parseSelectors("app=nvidia-operator-validator"),
	}
}

func parseSelectors(texts ...string) []labels.Selector {
	all := make([]labels.Selector, len(texts))
	for i, text := range texts {
		s, err := labels.Parse(text)
		if err != nil {
			panic(err) // the texts above
		}
		all[i] = s
	}
	return all
}

// Set parses "operand=selector" and replaces the operand's selectors by that one.
func (s Selectors) Set(text string) error {
	name, selector, found := strings.Cut(text, "=")
	operand := Operand(name)
	if !found || !slices.Contains(Operands(), operand) {
		return fmt.Errorf("%q: want driver, toolkit, plugin or validator, then = and a label selector", text)
	}
	parsed, err := labels.Parse(selector)
	if err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	if parsed.Empty() {
		return fmt.Errorf("%q: an empty selector matches every pod", text)
	}
	s[operand] = []labels.Selector{parsed}
	return nil
}

// Of returns the operand that a pod belongs to, or "".
func (s Selectors) Of(pod *corev1.Pod) Operand {
	for _, operand := range Operands() {
		for _, selector := range s[operand] {
			if selector.Matches(labels.Set(pod.Labels)) {
				return operand
			}
		}
	}
	return ""
}
