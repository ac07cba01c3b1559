package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// fabricStates are the names of nvmlGpuFabricState_t from 1 on; 0 is for GPUs without a fabric.
var fabricStates = []string{"not-started", "in-progress", "completed"}

// fabricParts maps what can be bad about a fabric to its bit.
var fabricParts = map[string]uint32{
	"bandwidth": FabricBandwidth, "route-recovery": FabricRouteRecovery, "route": FabricRoute, "access-timeout": FabricAccessTimeout,
}

// maxFabricConfiguration is the width of the part of NVML's health mask.
const maxFabricConfiguration = 15

// FabricStates returns the names of the states of a GPU's registration with its fabric.
func FabricStates() []string { return slices.Clone(fabricStates) }

// FabricParts returns the names of what can be bad about a fabric, sorted.
func FabricParts() []string { return slices.Sorted(maps.Keys(fabricParts)) }

// FabricChange describes what becomes of a GPU in its NVLink fabric; a nil field leaves that part unchanged.
type FabricChange struct {
	State  *string   // one of FabricStates
	Status *uint32   // nvmlReturn_t with which the registration ended
	Bad    *[]string // of FabricParts, or "none"
	// Configuration is NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_…; 0: it is right.
	Configuration *uint32
}

// SetFabric changes what the GPU says of its fabric.
func (s *State) SetFabric(index int, c FabricChange) error {
	g := &s.Gpu[index]
	if g.FabricSupported == 0 {
		return fmt.Errorf("%s has no NVLink fabric", Text(g.Name[:]))
	}
	if c.State != nil {
		i := slices.Index(fabricStates, *c.State)
		if i < 0 {
			return fmt.Errorf("state: %q is not one of %s", *c.State, strings.Join(fabricStates, ", "))
		}
		g.FabricState = uint32(1 + i)
	}
	if c.Status != nil {
		g.FabricStatus = *c.Status
	}
	if c.Bad != nil {
		g.FabricBad = 0
		for _, name := range *c.Bad {
			bit, ok := fabricParts[name]
			if !ok && name != "none" {
				return fmt.Errorf("health: %q is neither none nor one of %s", name, strings.Join(FabricParts(), ", "))
			}
			g.FabricBad |= bit
		}
	}
	if n := c.Configuration; n != nil {
		if *n > maxFabricConfiguration {
			return fmt.Errorf("configuration: %d is not 0 to %d", *n, maxFabricConfiguration)
		}
		g.FabricWrong = *n
	}
	return nil
}

// DescribeFabric returns what is wrong with the GPU in its fabric, "" if nothing is.
func (g *GPU) DescribeFabric() string {
	if g.FabricSupported == 0 {
		return ""
	}
	var found []string
	if i := int(g.FabricState) - 1; i >= 0 && i < len(fabricStates)-1 {
		found = append(found, fabricStates[i])
	}
	if g.FabricStatus != 0 {
		found = append(found, ErrorName(g.FabricStatus))
	}
	for _, name := range FabricParts() {
		if g.FabricBad&fabricParts[name] != 0 {
			found = append(found, name)
		}
	}
	if g.FabricWrong != 0 {
		found = append(found, "configuration "+strconv.FormatUint(uint64(g.FabricWrong), 10))
	}
	return strings.Join(found, ",")
}
