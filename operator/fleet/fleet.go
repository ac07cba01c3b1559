// Package fleet is what the operator knows of the cluster's nodes, and what follows
// from it. It is pure: an observed Node goes in, facts come out.
package fleet

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Node is one of the cluster's, reduced to what the operator acts on. It is not
// changed after it was made.
type Node struct {
	Name        string
	UID         string
	Created     time.Time
	GPU         bool // NFD has seen an NVIDIA GPU, or somebody says so
	Described   bool // NFD has been here
	Ready       bool // the kubelet's
	Cordoned    bool
	Pool        Pool
	Injection   Injection
	Kubelet     string            // version, "v1.29.3"
	Runtime     string            // "containerd://2.0.1"
	Labels      map[string]string // those that the operator reads or writes
	Annotations map[string]string // the same
	GPUReady    Condition         // the validator's word
	GPUHealthy  Condition
}

// Condition is one of a Node's. The zero value: the Node has none of that type.
type Condition struct {
	Status  corev1.ConditionStatus
	Reason  string
	Message string
	Since   time.Time // of the status
	Said    time.Time // when it was said last, although it stayed the same
}

// Pool is what nodes have in common that can have the same driver: equal Pools are one
// group.
type Pool struct {
	Arch   string // "amd64", "arm64"
	OS     string // the OS tag of images: "ubuntu22.04", "rhcos4.12"; "" where it is not known
	Kernel string // "4.18.0-372.51.1.el8_6.x86_64"; "" where it is not known
	RHCOS  string // OSTREE_VERSION, "412.86.202303241612-0"; "" elsewhere
}

// Injection is how containers of a Node get GPUs.
type Injection string

// How node agents and users' containers get GPUs, by the version of kubelet and runtime.
const (
	NRI         Injection = "nri"         // agents by NRI, users' containers by CDI names in Allocate: kubelet ≥ 1.29, containerd ≥ 2.0 or CRI-O ≥ 1.28
	CDI         Injection = "cdi"         // agents are privileged, CDI names in Allocate: kubelet ≥ 1.29 and a runtime that can do CDI once configured (containerd ≥ 1.7)
	Annotations Injection = "annotations" // agents are privileged, cdi-annotations: kubelet < 1.29, a runtime with CDI
	Handler     Injection = "handler"     // agents are privileged, envvar and the runtime handler: everything older
)
