package gpu

import "slices"

// Condition is what a GPU tells of its own state at one moment, beyond what
// makes a Fault of it. What it does not tell is zero.
type Condition struct {
	ECC      ECC        `json:"ecc"`
	Rows     Rows       `json:"rows"`
	Throttle []Throttle `json:"throttle,omitempty"` // why its clocks are not the highest now
	PCIe     PCIe       `json:"pcie"`
	NVLinks  NVLinks    `json:"nvlinks"`
}

// ECC counts memory errors that could not be corrected.
type ECC struct {
	On        bool   `json:"on"`        // else nothing is counted
	Volatile  uint64 `json:"volatile"`  // since the driver took the GPU up
	Aggregate uint64 `json:"aggregate"` // in the GPU's life
}

// Rows are rows of memory that were replaced by spare ones, and how that went.
// GPUs from Ampere on remap rows.
type Rows struct {
	Supported   bool `json:"supported"`
	Uncorrected int  `json:"uncorrected"` // remapped because of errors that could not be corrected
	Pending     bool `json:"pending"`     // some wait for a reset
	Failed      bool `json:"failed"`      // one could not be remapped: there was no spare row left
}

// PCIe is the link between a GPU and the machine. Max is what GPU and slot can
// do together. An idle GPU lowers the generation to save power; the width stays.
type PCIe struct {
	Generation    int `json:"generation"`
	MaxGeneration int `json:"maxGeneration"`
	Width         int `json:"width"`
	MaxWidth      int `json:"maxWidth"`
}

// NVLinks are the links that the GPU has, by number.
type NVLinks struct {
	Up   []int `json:"up,omitempty"`
	Down []int `json:"down,omitempty"`
}

// Throttle is a reason for which a GPU's clocks are held down.
type Throttle string

// The reasons, as nvml.h lists them under nvmlClocksEventReasons.
const (
	ThrottleIdle         Throttle = "Idle"
	ThrottleApplication  Throttle = "ApplicationClocks" // somebody has set them
	ThrottlePowerCap     Throttle = "SWPowerCap"        // the board's power limit is reached
	ThrottleHardware     Throttle = "HWSlowdown"        // temperature, power brake or supply, by the hardware
	ThrottleSyncBoost    Throttle = "SyncBoost"         // another GPU of its group is held down
	ThrottleThermal      Throttle = "SWThermalSlowdown"
	ThrottleHeat         Throttle = "HWThermalSlowdown"
	ThrottlePowerBrake   Throttle = "HWPowerBrake" // the machine's power supply pulls the brake
	ThrottleDisplayClock Throttle = "DisplayClock"
)

// Bad reports whether the reason is that something is wrong with the machine: with
// its cooling or its power. The others are how a GPU works.
func (t Throttle) Bad() bool {
	return slices.Contains([]Throttle{ThrottleHardware, ThrottleThermal, ThrottleHeat, ThrottlePowerBrake}, t)
}
