package gpu

import "slices"

// Condition is the state that a GPU reports about itself at one moment, besides its
// Fault. A field is zero if the GPU does not report it.
type Condition struct {
	ECC      ECC        `json:"ecc"`
	Rows     Rows       `json:"rows"`
	Throttle []Throttle `json:"throttle,omitempty"` // why its clocks are below the maximum now
	PCIe     PCIe       `json:"pcie"`
	NVLinks  NVLinks    `json:"nvlinks"`
	// C2CLinks counts the links in use between the GPU and the CPU of its module. GH200, GB200 and
	// their successors move data over NVLink-C2C and not over PCIe.
	C2CLinks int `json:"c2cLinks,omitempty"`
}

// ECC counts memory errors that could not be corrected.
type ECC struct {
	On        bool   `json:"on"`        // if not, nothing is counted
	Volatile  uint64 `json:"volatile"`  // since the driver last initialised the GPU
	Aggregate uint64 `json:"aggregate"` // over the GPU's lifetime
}

// Rows counts the rows of memory that were remapped, that is, replaced by spare rows. It
// also reports whether that failed. GPUs from Ampere on remap rows.
type Rows struct {
	Supported   bool `json:"supported"`
	Uncorrected int  `json:"uncorrected"` // remapped because of errors that could not be corrected
	Pending     bool `json:"pending"`     // some are remapped at the next reset
	Failed      bool `json:"failed"`      // one could not be remapped: there was no spare row left
}

// PCIe is the link between a GPU and the machine. MaxWidth is the GPU's own: the slot may
// have fewer lanes. MaxGeneration is the highest for this GPU in this slot, and the GPU's own
// where the slot is not visible, as in a virtual machine. An idle GPU lowers the generation to
// save power, not the width.
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

// The reasons of nvmlClocksEventReasons in nvml.h, in its order.
const (
	ThrottleIdle         Throttle = "Idle"              // nothing runs on the GPU
	ThrottleApplication  Throttle = "ApplicationClocks" // somebody has limited the applications' clocks
	ThrottlePowerCap     Throttle = "SWPowerCap"        // the board's power limit is reached
	ThrottleHardware     Throttle = "HWSlowdown"        // by the hardware: temperature, power brake, power draw
	ThrottleSyncBoost    Throttle = "SyncBoost"         // another GPU of its group is throttled
	ThrottleThermal      Throttle = "SWThermalSlowdown" // too hot: the driver reduces the clocks
	ThrottleHeat         Throttle = "HWThermalSlowdown" // too hot: the hardware halves the clocks, or more
	ThrottlePowerBrake   Throttle = "HWPowerBrake"      // a signal from outside, such as the power supply
	ThrottleDisplayClock Throttle = "DisplayClock"      // a display limits the clocks
)

// Bad reports whether the reason is a problem of the machine: its cooling or its
// power. The other reasons are normal operation.
func (t Throttle) Bad() bool {
	return slices.Contains([]Throttle{ThrottleHardware, ThrottleThermal, ThrottleHeat, ThrottlePowerBrake}, t)
}
