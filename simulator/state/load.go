package state

import (
	"fmt"
	"math"
	"time"
)

// Load describes how busy NVML reports a GPU to be. A nil field leaves that part unchanged.
type Load struct {
	Percent     *uint32        // utilisation, 0 to 100; 0: idle
	Period      *time.Duration // of one cycle, in which the load falls to half and rises again; 0: constant
	Temperature *uint32        // °C at full load; 0: 5 below the temperature at which it slows down
	Watts       *uint32        // at full load; 0: its power limit
	MemoryMiB   *uint64        // in use, or AllMemory; in MIG mode, shared out by the size of the instances
}

// AllMemory is a Load.MemoryMiB: all that is free when idle.
const AllMemory = math.MaxUint64

const (
	maxPeriod      = 24 * time.Hour
	maxTemperature = 150 // °C
	maxWatts       = 10_000
)

// SetLoad sets the load of the GPU with the given index.
func (s *State) SetLoad(index int, l Load) error {
	g := &s.Gpu[index]
	if l.Percent != nil {
		if *l.Percent > 100 {
			return fmt.Errorf("percent: %d is not 0 to 100", *l.Percent)
		}
		g.Load = *l.Percent
	}
	if l.Period != nil {
		if *l.Period < 0 || *l.Period > maxPeriod {
			return fmt.Errorf("period: %v is not 0 to %v", *l.Period, maxPeriod)
		}
		g.LoadPeriodMs = uint32(l.Period.Milliseconds())
	}
	if l.Temperature != nil {
		if *l.Temperature > maxTemperature {
			return fmt.Errorf("temperature: %d is not 0 to %d °C", *l.Temperature, maxTemperature)
		}
		g.LoadTemperature = *l.Temperature
	}
	if l.Watts != nil {
		if *l.Watts > maxWatts {
			return fmt.Errorf("power: %d is not 0 to %d W", *l.Watts, maxWatts)
		}
		g.LoadPowerMw = *l.Watts * 1000
	}
	if l.MemoryMiB != nil {
		free := (g.MemoryTotal - g.MemoryReserved - g.MemoryUsed) >> 20
		want := *l.MemoryMiB
		if want == AllMemory {
			want = free
		}
		if want > free {
			return fmt.Errorf("memory-used: %s has only %d MiB free when idle", Text(g.Name[:]), free)
		}
		g.LoadMemory = want << 20
	}
	return nil
}
