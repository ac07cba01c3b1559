package state

import (
	"fmt"
	"slices"
)

// computeModes are the values of nvmlComputeMode_t, by nvidia-smi's names.
var computeModes = map[string]uint32{"default": 0, "prohibited": 2, "exclusive-process": 3}

// ComputeModes returns the names of the compute modes.
func ComputeModes() []string { return []string{"default", "prohibited", "exclusive-process"} }

// ComputeModeName returns the name of a compute mode; "" for the default one.
func ComputeModeName(mode uint32) string {
	for name, m := range computeModes {
		if m == mode && m != 0 {
			return name
		}
	}
	return ""
}

// SetComputeMode sets the compute mode of the GPU with the given index, as nvidia-smi -c does.
func (s *State) SetComputeMode(index int, name string) error {
	mode, ok := computeModes[name]
	if !ok {
		return fmt.Errorf("mode: %q is none of %v", name, ComputeModes())
	}
	g := &s.Gpu[index]
	if g.MigCurrent != 0 {
		return fmt.Errorf("%s is in MIG mode, in which there are no compute modes", Text(g.Name[:]))
	}
	g.ComputeMode = mode
	return nil
}

// Process describes a process that NVML lists on a GPU.
type Process struct {
	PID       uint32
	Name      string
	MemoryMiB uint64 // of the GPU's memory
	Graphics  bool
	// GPUInstance and ComputeInstance confine it to a MIG device; None: the whole GPU.
	GPUInstance, ComputeInstance uint32
}

// AddProcess lists a process on the GPU with the given index. Its memory is then in use.
func (s *State) AddProcess(index int, p Process) error {
	g := &s.Gpu[index]
	if p.PID == 0 {
		return fmt.Errorf("pid: it is above 0")
	}
	if slices.ContainsFunc(g.Proc[:], func(o Proc) bool { return o.Used != 0 && o.Pid == p.PID }) {
		return fmt.Errorf("pid: process %d is listed already", p.PID)
	}
	free := slices.IndexFunc(g.Proc[:], func(o Proc) bool { return o.Used == 0 })
	if free < 0 {
		return fmt.Errorf("%s has %d processes, and there is no room for more", Text(g.Name[:]), MaxProcs)
	}
	if left := (g.MemoryTotal - g.MemoryReserved - g.MemoryUsed - g.LoadMemory) >> 20; p.MemoryMiB > left {
		return fmt.Errorf("memory: %s has only %d MiB free", Text(g.Name[:]), left)
	}
	one := Proc{Used: 1, Pid: p.PID, Gi: p.GPUInstance, Ci: p.ComputeInstance, Memory: p.MemoryMiB << 20}
	if p.Graphics {
		one.Graphics = 1
	}
	if err := SetText(one.Name[:], p.Name); err != nil {
		return err
	}
	g.Proc[free] = one
	if g.MigCurrent == 0 {
		g.MemoryUsed += one.Memory
	}
	return nil
}

// EndProcess removes a process, 0 for all, from the GPU with the given index.
func (s *State) EndProcess(index int, pid uint32) error {
	g := &s.Gpu[index]
	found := false
	for i := range g.Proc {
		p := &g.Proc[i]
		if p.Used == 0 || pid != 0 && p.Pid != pid {
			continue
		}
		found = true
		if g.MigCurrent == 0 {
			g.MemoryUsed -= min(p.Memory, g.MemoryUsed)
		}
		*p = Proc{}
	}
	if !found && pid != 0 {
		return fmt.Errorf("pid: no process %d is listed on %s", pid, Text(g.Name[:]))
	}
	return nil
}
