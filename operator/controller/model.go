package controller

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// model is the operator's view of the cluster. One goroutine owns it; the watches update it
// through the inbox. Each object is reduced to what the operator acts on when it arrives, so
// that a pass reads only the model.
type model struct {
	namespace string // of the operands
	changed   bool   // something has changed since the last pass

	policies      map[string]*v1.ClusterPolicy
	pendingStatus map[string]v1.ClusterPolicyStatus // of policies, being written to the API server

	nodes     map[string]*member
	unwritten map[string]error           // why Nodes could not be patched
	refused   map[string]upgrade.Refusal // Nodes whose patches have failed for a long time, with the time of the next try

	pods   map[types.NamespacedName]*operand // of operands
	podsOn map[string][]*operand             // the same by node

	objects    map[apply.Key]client.Object  // the operator's own
	foreign    map[apply.Key]bool           // other owners' objects with names that ours may need
	classes    map[string]bool              // RuntimeClasses; true if they give containers GPUs
	handlers   map[string]string            // of RuntimeClasses
	configMaps map[string]*corev1.ConfigMap // without their values

	builds   map[string]driver.Build                  // Jobs that build modules
	builders map[types.NamespacedName]driver.BuildPod // pods of those Jobs

	openShift    bool              // the cluster has ImageStreams
	toolkit      map[string]string // the Driver Toolkit's images by RHCOS version
	toolkitError string            // why those could not be read; "" if they were

	serviceMonitors bool  // the cluster has the prometheus-operator's kind
	monitorsError   error // why its objects have not been read; nil if they were

	dra          bool                      // the API server serves Dynamic Resource Allocation
	classesError error                     // why the DeviceClasses have not been read; nil if they were
	slicesError  error                     // why the ResourceSlices have not been read; nil if they were
	published    map[string]map[string]int // devices of each ResourceSlice of the DRA driver, by node

	nvidiaDrivers map[string]*v1alpha1.NVIDIADriver
	driversError  error             // why they have not been read; nil if they were
	undecoded     map[string]error  // of NVIDIADrivers, by name
	selection     *driver.Selection // of the NVIDIADriver of each node; nil: the policy has the driver
	selectedBy    string            // what selection was made of

	nvidiaOperators map[types.NamespacedName]bool            // Deployments of NVIDIA's operator
	siblings        map[types.NamespacedName]bool            // Deployments of this product's operator, this one included; true if a pod of it is ready
	elsewhere       map[string]map[types.NamespacedName]bool // operands' pods in other namespaces, by namespace
	otherPluginPods map[types.NamespacedName]otherPlugin     // device plugins' pods in other namespaces
}

func newModel(namespace string) *model {
	return &model{
		namespace:       namespace,
		changed:         true,
		policies:        map[string]*v1.ClusterPolicy{},
		pendingStatus:   map[string]v1.ClusterPolicyStatus{},
		nodes:           map[string]*member{},
		unwritten:       map[string]error{},
		refused:         map[string]upgrade.Refusal{},
		pods:            map[types.NamespacedName]*operand{},
		podsOn:          map[string][]*operand{},
		objects:         map[apply.Key]client.Object{},
		foreign:         map[apply.Key]bool{},
		classes:         map[string]bool{},
		handlers:        map[string]string{},
		configMaps:      map[string]*corev1.ConfigMap{},
		builds:          map[string]driver.Build{},
		builders:        map[types.NamespacedName]driver.BuildPod{},
		toolkit:         map[string]string{},
		published:       map[string]map[string]int{},
		nvidiaDrivers:   map[string]*v1alpha1.NVIDIADriver{},
		driversError:    errNoDrivers,
		undecoded:       map[string]error{},
		nvidiaOperators: map[types.NamespacedName]bool{},
		siblings:        map[types.NamespacedName]bool{},
		elsewhere:       map[string]map[types.NamespacedName]bool{},
		otherPluginPods: map[types.NamespacedName]otherPlugin{},
	}
}

// inForce returns the oldest policy, which is the one that counts, or nil. ignored are the
// others.
func (m *model) inForce() (policy *v1.ClusterPolicy, ignored []*v1.ClusterPolicy) {
	var all []*v1.ClusterPolicy
	for _, p := range m.policies {
		if p.DeletionTimestamp == nil {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *v1.ClusterPolicy) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if len(all) == 0 {
		return nil, nil
	}
	return all[0], all[1:]
}
