package gpu

import "strconv"

// ComputeMode limits the processes that may use a GPU at once; it has NVML's numbers.
type ComputeMode int

// The compute modes.
const (
	ComputeDefault    ComputeMode = 0 // any number of them
	ComputeProhibited ComputeMode = 2 // none
	ComputeExclusive  ComputeMode = 3 // one, which may be an MPS server with many clients
)

// ParseComputeMode reads what String returns; any other text is the default mode.
func ParseComputeMode(text string) ComputeMode {
	for _, m := range []ComputeMode{ComputeProhibited, ComputeExclusive} {
		if m.String() == text {
			return m
		}
	}
	return ComputeDefault
}

// String returns the mode as nvidia-smi -c takes it.
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
