package gpu

import "strconv"

// ComputeMode says how many processes may use a GPU at once, as NVML numbers it.
type ComputeMode int

// The compute modes.
const (
	ComputeDefault    ComputeMode = 0 // any number of them
	ComputeProhibited ComputeMode = 2 // none
	ComputeExclusive  ComputeMode = 3 // one, which may be an MPS server with many clients
)

// String is the mode as nvidia-smi -c takes it.
func (m ComputeMode) String() string {
	switch m {
	case ComputeDefault:
		return "DEFAULT"
	case ComputeProhibited:
		return "PROHIBITED"
	case ComputeExclusive:
		return "EXCLUSIVE_PROCESS"
	}
	return "mode " + strconv.Itoa(int(m))
}
