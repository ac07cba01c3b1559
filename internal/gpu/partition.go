package gpu

import (
	"errors"
	"slices"
)

// PartitionProfile is a kind of GPU instance that a GPU in MIG mode can be partitioned into.
type PartitionProfile struct {
	ID          int    // by which the driver knows it, 19 of 1g.10gb; nvidia-smi mig -lgip lists it
	Name        string // "1g.10gb", "1g.10gb+me"
	Slices      int    // compute slices
	Size        int    // memory slices
	Instances   int    // how many of them may exist at once on an empty GPU
	Starts      []int  // the memory slices at which one may begin, sorted
	MemoryBytes uint64
	Attributes  Attributes
}

// Instance is a GPU instance that exists, with or without a MIG device in it.
type Instance struct {
	ID      int
	Profile int // ID of its profile
	Start   int // its first memory slice
	Size    int // memory slices
}

// Placement is a place of a GPU instance: at most one instance can be there.
type Placement struct {
	GPU     UUID `json:"gpu"`
	Profile int  `json:"profile"` // ID of the PartitionProfile
	Start   int  `json:"start"`   // the first memory slice
	Size    int  `json:"size"`    // memory slices
}

// Partition is a GPU instance that was created for one MIG device.
type Partition struct {
	Placement
	GPUInstance     int  `json:"gpuInstance"`
	ComputeInstance int  `json:"computeInstance"`
	UUID            UUID `json:"uuid"` // of the MIG device
}

// Overlaps reports whether two placements share memory slices of one GPU.
func (p Placement) Overlaps(o Placement) bool {
	return p.GPU == o.GPU && p.Start < o.Start+o.Size && o.Start < p.Start+p.Size
}

// Errors of creating and destroying partitions.
var (
	ErrInUse     = errors.New("the partition is in use")
	ErrNoRoom    = errors.New("the GPU has no room for the partition there")
	ErrNoMIGMode = errors.New("the GPU is not in MIG mode, or has no such profile or placement")
	// ErrUnreachable means that the GPU is lost, not listed by the driver any more, or released for a
	// reset. What was on it is gone after a reset.
	ErrUnreachable = errors.New("the GPU cannot be reached")
	// ErrLeftover means that something may be left of a partition that could not be created.
	ErrLeftover = errors.New("something may be left of the partition")
)

// Equal reports whether two profiles are equal.
func (p PartitionProfile) Equal(o PartitionProfile) bool {
	return p.ID == o.ID && p.Name == o.Name && p.Slices == o.Slices && p.Size == o.Size && p.Instances == o.Instances &&
		p.MemoryBytes == o.MemoryBytes && p.Attributes == o.Attributes && slices.Equal(p.Starts, o.Starts)
}
