// Package fleet models the cluster's nodes and computes their labels. It is pure: it turns an
// observed Node into facts and patches.
//
// NFD decides whether a Node has a GPU, or a person does with nvidia.com/gpu.present. The
// operator writes that label itself, and those that place operands. It records what it wrote
// in the annotation gpuready.io/labels, and changes or removes only recorded labels that still
// have a value it gives them. Every other label belongs to a person or to NVIDIA's operator,
// and is respected.
package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/operator/label"
)

// Node is a node of the cluster, reduced to what the operator acts on. It must not be changed
// after it was made.
type Node struct {
	Name         string
	UID          string
	Version      string // resourceVersion that patches are based on
	Created      time.Time
	GPU          bool // NFD has found an NVIDIA GPU, or a person says so
	HasNFDLabels bool // NFD has labelled the node
	Ready        bool // by the kubelet
	Cordoned     bool
	Pool         Pool
	Injection    Injection
	Kubelet      string            // version, "v1.29.3"
	Runtime      string            // "containerd://2.0.1"
	Handlers     []string          // of the container runtime, sorted; nil: the kubelet does not report them
	Taints       []corev1.Taint    // all
	Labels       map[string]string // only those that the operator reads or writes
	AllLabels    map[string]string // of a node with a GPU; policies and NVIDIADrivers select nodes by them
	Annotations  map[string]string // only those that the operator reads or writes
	Heartbeat    time.Time         // of the kubelet's last report, by the node's clock
	GPUReady     Condition         // by the validator
	GPUHealthy   Condition
	Allocatable  bool // the kubelet has resources of the device plugin that pods may be given
	Withheld     bool // the kubelet has more of a resource of the device plugin than pods may be given
	Registered   bool // the kubelet has resources of the device plugin, perhaps while that is restarted
}

// Condition is a condition of a Node. The zero value means that the Node has none of that type.
type Condition struct {
	Status  corev1.ConditionStatus
	Reason  string
	Message string
	Since   time.Time // of the status, by the node's clock
	Renewed time.Time // when it was last renewed, by the node's clock
}

// LastWrite returns when the condition was last renewed, or else since when it has its status.
func (c Condition) LastWrite() time.Time {
	if c.Renewed.IsZero() {
		return c.Since
	}
	return c.Renewed
}

// StaleAfter bounds the lag of the validator's condition behind the kubelet's; beyond it, the
// condition no longer counts. Both are renewed every five minutes, by the node's clock, which is
// compared with no other.
const StaleAfter = 15 * time.Minute

// Stale reports whether the validator's condition lags too far behind the kubelet's to count. Its
// validator may have been removed long ago.
func (n *Node) Stale() bool {
	return n.GPUReady.Status != "" && n.Heartbeat.Sub(n.GPUReady.LastWrite()) >= StaleAfter
}

// Pool identifies the nodes that can have the same driver: nodes with equal Pools form one
// group.
type Pool struct {
	Arch   string // "amd64", "arm64"
	OS     string // the OS tag of images: "ubuntu22.04", "rhcos4.12"; "" if unknown
	Kernel string // "4.18.0-372.51.1.el8_6.x86_64"; "" if unknown
	CoreOS bool   // RHCOS, whether or not its version is known
	RHCOS  string // OSTREE_VERSION, "412.86.202303241612-0", as labelled by NFD; "" if it is not
	// NotServed means that the nodes are of a platform that is not served, so that they get no driver.
	NotServed bool `json:",omitempty"`
	// Drivers are the names of the NVIDIADrivers that select the nodes: one, or several separated by
	// ", ", which is a conflict. It is NoDriver if none does, and "" while the ClusterPolicy has the
	// driver.
	Drivers string `json:",omitempty"`
}

// NoDriver is Pool.Drivers of nodes that no NVIDIADriver selects. It is no name of an object.
const NoDriver = "-"

// NVIDIADriver returns the name of the one NVIDIADriver that selects the nodes; "" if none or
// several do, or if the ClusterPolicy has the driver.
func (p Pool) NVIDIADriver() string {
	if p.Drivers == NoDriver || strings.Contains(p.Drivers, ",") {
		return ""
	}
	return p.Drivers
}

// String returns the pool's name for people: "amd64/ubuntu22.04/5.15.0-105-generic", and at its end
// the NVIDIADrivers that select its nodes, and whether these are not served.
func (p Pool) String() string {
	var parts []string
	for _, part := range []string{p.Arch, p.OS, p.RHCOS, p.Kernel, p.Drivers} {
		if part != "" && part != NoDriver {
			parts = append(parts, part)
		}
	}
	if p.NotServed {
		parts = append(parts, "not served")
	}
	return cmp.Or(strings.Join(parts, "/"), "unknown")
}

// Injection is a way in which containers of a Node get GPUs.
type Injection string

// How node agents and users' containers get GPUs, by the version of kubelet and runtime.
const (
	NRI         Injection = "nri"         // agents by NRI, users' containers by CDI names in Allocate: kubelet ≥ 1.29, containerd ≥ 2.0 or CRI-O ≥ 1.28
	CDI         Injection = "cdi"         // agents are privileged, CDI names in Allocate: kubelet ≥ 1.29 and a runtime that can be configured for CDI (containerd ≥ 1.7)
	Annotations Injection = "annotations" // agents are privileged, cdi-annotations: a runtime with CDI, if the kubelet (< 1.29) or the runtime does not support CDI names in Allocate
	Handler     Injection = "handler"     // agents are privileged, envvar and the runtime handler: everything older or unknown
)

// WithDrivers returns the Node as one of the nodes that some NVIDIADrivers select (Pool.Drivers).
func (n *Node) WithDrivers(names string) *Node {
	if n.Pool.Drivers == names {
		return n
	}
	with := *n
	with.Pool.Drivers = names
	return &with
}

// Excluded reports whether a person excludes all operands from the Node. It is false for a Node
// that was handed over to this operator: there the label excludes NVIDIA's operands.
func (n *Node) Excluded() bool {
	return n.Labels[label.Operands] == "false" && !n.HandedOver()
}

// HandedOver reports whether a person gave the Node to this operator while NVIDIA's runs.
func (n *Node) HandedOver() bool {
	return n.Labels[label.HandOver] == label.Product
}

// Served reports whether the operator acts on the Node. handOver is true while NVIDIA's
// operator runs in the cluster.
func (n *Node) Served(handOver bool) bool {
	return n.GPU && !n.Excluded() && (!handOver || n.HandedOver())
}

// HostDriver reports whether the operator or a person has labelled the Node's host as having
// its own driver.
func (n *Node) HostDriver() bool {
	return n.Labels[label.Driver] == label.PreInstalled || n.Labels[label.Deploy+label.DriverOperand] == label.PreInstalled
}

// ServedBy returns how pods get the Node's GPUs, by its label, and whether a person has set that.
func (n *Node) ServedBy() (serve string, byPerson bool) {
	serve = n.Labels[label.Serve]
	return serve, serve != "" && (!isOwnValue(label.Serve, serve) || !n.recorded().has(label.Serve))
}

// SupportsDRA reports whether kubelet and container runtime can give pods GPUs by ResourceClaims:
// the kubelet has Dynamic Resource Allocation from 1.34 on, and containers get CDI devices.
func (n *Node) SupportsDRA() bool {
	return parseRelease(n.Kubelet).atLeast(1, 34) && (n.Injection == NRI || n.Injection == CDI)
}

// Equal reports whether nothing that the operator acts on differs. It ignores Version and the
// times when conditions were renewed. Callers should keep the newest Node even if it is equal,
// since those times show whether a condition is still renewed.
func (n *Node) Equal(o *Node) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.Name == o.Name && n.UID == o.UID && n.Created.Equal(o.Created) &&
		n.GPU == o.GPU && n.HasNFDLabels == o.HasNFDLabels && n.Ready == o.Ready && n.Cordoned == o.Cordoned &&
		n.Pool == o.Pool && n.Injection == o.Injection && n.Kubelet == o.Kubelet && n.Runtime == o.Runtime && slices.Equal(n.Handlers, o.Handlers) &&
		n.Allocatable == o.Allocatable && n.Registered == o.Registered && n.Withheld == o.Withheld && n.GPUReady.equal(o.GPUReady) && n.GPUHealthy.equal(o.GPUHealthy) &&
		maps.Equal(n.Labels, o.Labels) && maps.Equal(n.AllLabels, o.AllLabels) && maps.Equal(n.Annotations, o.Annotations) && sameTaints(n.Taints, o.Taints)
}

func (c Condition) equal(o Condition) bool {
	return c.Status == o.Status && c.Reason == o.Reason && c.Message == o.Message && c.Since.Equal(o.Since)
}

func sameTaints(a, b []corev1.Taint) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Key != b[i].Key || a[i].Value != b[i].Value || a[i].Effect != b[i].Effect {
			return false
		}
	}
	return true
}
