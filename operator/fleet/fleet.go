// Package fleet is what the operator knows of the cluster's nodes, and what follows
// from it. It is pure: an observed Node goes in, facts come out.
//
// Where a Node has a GPU is NFD's to say, or a person's, by nvidia.com/gpu.present.
// The operator writes that label itself, and those by which operands are placed. What
// it wrote it records in the annotation gpuready.io/labels, and only what stands
// there, with the value that the operator gives it, is ever changed or removed: every
// other label is a person's (or of NVIDIA's operator), and its word is taken.
package fleet

import (
	"cmp"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/operator/label"
)

// Node is one of the cluster's, reduced to what the operator acts on. It is not
// changed after it was made.
type Node struct {
	Name        string
	UID         string
	Version     string // resourceVersion, of what patches are made from
	Created     time.Time
	GPU         bool // NFD has seen an NVIDIA GPU, or somebody says so
	Described   bool // NFD has been here
	Ready       bool // the kubelet's
	Cordoned    bool
	Pool        Pool
	Injection   Injection
	Kubelet     string            // version, "v1.29.3"
	Runtime     string            // "containerd://2.0.1"
	Taints      []corev1.Taint    // all
	Labels      map[string]string // those that the operator reads or writes
	Annotations map[string]string // the same
	Heartbeat   time.Time         // when the kubelet last said how the node is, by the node's clock
	GPUReady    Condition         // the validator's word
	GPUHealthy  Condition
}

// Condition is one of a Node's. The zero value: the Node has none of that type.
type Condition struct {
	Status  corev1.ConditionStatus
	Reason  string
	Message string
	Since   time.Time // of the status, by the node's clock
	Said    time.Time // when it was said last, although it stayed the same, by the node's clock
}

// Pool is what nodes have in common that can have the same driver: equal Pools are one
// group.
type Pool struct {
	Arch   string // "amd64", "arm64"
	OS     string // the OS tag of images: "ubuntu22.04", "rhcos4.12"; "" where it is not known
	Kernel string // "4.18.0-372.51.1.el8_6.x86_64"; "" where it is not known
	CoreOS bool   // RHCOS, whether or not its version is known
	RHCOS  string // OSTREE_VERSION, "412.86.202303241612-0", as NFD labels it; "" where it does not
}

// String is how the pool is called in front of people: "amd64/ubuntu22.04/5.15.0-105-generic".
func (p Pool) String() string {
	var parts []string
	for _, part := range []string{p.Arch, p.OS, p.RHCOS, p.Kernel} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return cmp.Or(strings.Join(parts, "/"), "unknown")
}

// Injection is how containers of a Node get GPUs.
type Injection string

// How node agents and users' containers get GPUs, by the version of kubelet and runtime.
const (
	NRI         Injection = "nri"         // agents by NRI, users' containers by CDI names in Allocate: kubelet ≥ 1.29, containerd ≥ 2.0 or CRI-O ≥ 1.28
	CDI         Injection = "cdi"         // agents are privileged, CDI names in Allocate: kubelet ≥ 1.29 and a runtime that can do CDI once configured (containerd ≥ 1.7)
	Annotations Injection = "annotations" // agents are privileged, cdi-annotations: a runtime with CDI, where the kubelet (< 1.29) or the runtime knows no CDI names in Allocate
	Handler     Injection = "handler"     // agents are privileged, envvar and the runtime handler: everything older, and what is not known
)

// Away says that a person keeps all operands off the Node. A Node that was handed over
// to this operator is not meant: there it is how NVIDIA's is kept away.
func (n *Node) Away() bool {
	return n.Labels[label.Operands] == "false" && !n.HandedOver()
}

// HandedOver says that a person gave the Node to this operator while NVIDIA's runs.
func (n *Node) HandedOver() bool {
	return n.Labels[label.HandOver] == label.Product
}

// Served says whether the operator acts on the Node; handOver, whether NVIDIA's
// operator runs in the cluster.
func (n *Node) Served(handOver bool) bool {
	return n.GPU && !n.Away() && (!handOver || n.HandedOver())
}

// HostDriver says that the Node is labelled as one whose host has its own driver, by the
// operator or by a person.
func (n *Node) HostDriver() bool {
	return n.Labels[label.Driver] == label.PreInstalled || n.Labels[label.Deploy+label.DriverOperand] == label.PreInstalled
}

// Equal says whether nothing that the operator acts on differs. Version is not compared,
// nor when conditions were said last: who keeps Nodes keeps the newest even so, for
// that is how a word that is still said is told from one that is not.
func (n *Node) Equal(o *Node) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.Name == o.Name && n.UID == o.UID && n.Created.Equal(o.Created) &&
		n.GPU == o.GPU && n.Described == o.Described && n.Ready == o.Ready && n.Cordoned == o.Cordoned &&
		n.Pool == o.Pool && n.Injection == o.Injection && n.Kubelet == o.Kubelet && n.Runtime == o.Runtime &&
		n.GPUReady.equal(o.GPUReady) && n.GPUHealthy.equal(o.GPUHealthy) &&
		maps.Equal(n.Labels, o.Labels) && maps.Equal(n.Annotations, o.Annotations) && sameTaints(n.Taints, o.Taints)
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
