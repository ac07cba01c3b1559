package gpu

// Process is a process that uses a GPU or MIG device.
type Process struct {
	PID    uint32 `json:"pid"`
	Memory uint64 `json:"memory,omitempty"` // of the device, in bytes; 0: not known
	// Graphics reports that it only draws, as a display server does: it has no CUDA context.
	Graphics bool `json:"graphics,omitempty"`
}

// Usage describes who uses a GPU or MIG device, and how much is left of it, at one moment.
type Usage struct {
	Mode ComputeMode `json:"mode"`
	// Processes is sorted by PID. The driver lists only processes of the reader's PID namespace and of
	// those below it: a container does not see those of the host and of other containers.
	Processes []Process `json:"processes,omitempty"`
	// MemorySize and MemoryFree are in bytes; 0, 0: not known.
	MemorySize uint64 `json:"memorySize,omitempty"`
	MemoryFree uint64 `json:"memoryFree,omitempty"`
}
