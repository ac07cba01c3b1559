package gpu

import "slices"

// Condition is the state that a GPU reports about itself at one moment, besides its
// Fault. Fields that it does not report are zero.
type Condition struct {
	ECC      ECC        `json:"ecc"`
	Rows     Rows       `json:"rows"`
	Throttle []Throttle `json:"throttle,omitempty"` // why its clocks are below the maximum now
	PCIe     PCIe       `json:"pcie"`
	NVLinks  NVLinks    `json:"nvlinks"`
}

// ECC counts memory errors that could not be corrected.
type ECC struct {
	On        bool   `json:"on"`        // else nothing is counted
	Volatile  uint64 `json:"volatile"`  // since the driver took the GPU up
	Aggregate uint64 `json:"aggregate"` // in the GPU's life
}

// Rows counts the rows of memory that were remapped to spare ones, and reports
// failures of that. GPUs from Ampere on remap rows.
type Rows struct {
	Supported   bool `json:"supported"`
	Uncorrected int  `json:"uncorrected"` // remapped because of errors that could not be corrected
	Pending     bool `json:"pending"`     // some wait for a reset
	Failed      bool `json:"failed"`      // one could not be remapped: there was no spare row left
}

// PCIe is the link between a GPU and the machine. The Max fields are the highest values
// for this GPU in this slot. An idle GPU lowers the generation to save power, not the
// width.
type PCIe struct {
	Generation    int `json:"generation"`
	MaxGeneration int `json:"maxGeneration"`
	Width         int `json:"width"`
	MaxWidth      int `json:"maxWidth"`
}

// NVLinks lists the GPU's NVLinks by number.
type NVLinks struct {
	Up   []int `json:"up,omitempty"`
	Down []int `json:"down,omitempty"`
}

// Throttle is a reason why a GPU's clocks are reduced.
type Throttle string

// The reasons, as nvml.h lists them under nvmlClocksEventReasons.
const (
	ThrottleIdle         Throttle = "Idle"
	ThrottleApplication  Throttle = "ApplicationClocks" // somebody has set them
	ThrottlePowerCap     Throttle = "SWPowerCap"        // the board's power limit is reached
	ThrottleHardware     Throttle = "HWSlowdown"        // temperature, power brake or supply, by the hardware
	ThrottleSyncBoost    Throttle = "SyncBoost"         // another GPU of its group is throttled
	ThrottleThermal      Throttle = "SWThermalSlowdown"
	ThrottleHeat         Throttle = "HWThermalSlowdown"
	ThrottlePowerBrake   Throttle = "HWPowerBrake" // the machine's power supply pulls the brake
	ThrottleDisplayClock Throttle = "DisplayClock"
)

// Bad reports whether the reason is a problem of the machine: its cooling or its
// power. The other reasons are normal operation.
func (t Throttle) Bad() bool {
	return slices.Contains([]Throttle{ThrottleHardware, ThrottleThermal, ThrottleHeat, ThrottlePowerBrake}, t)
}
