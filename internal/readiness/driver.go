package readiness

import (
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// NoDriver is the start of a message about layer driver if the node has no driver and the state of
// the driver's container has the reason.
const NoDriver = "no driver is loaded: "

// DriverProblem returns why no driver is loaded, according to the state of the driver's container.
// err is the error of reading the state. ok is false if there is no state, if it has no reason, or if
// the driver runs.
func DriverProblem(s nodestate.State, err error) (reason gpu.Reason, message string, ok bool) {
	if err != nil || s.Reason == "" || s.Message == "" || s.Phase != nodestate.Waiting && s.Phase != nodestate.Failed {
		return "", "", false
	}
	return s.Reason, NoDriver + s.Message, true
}

// Reasons in the state of a driver's container: it is loading the driver, and it has ended.
const (
	starting gpu.Reason = "DriverStarting"
	stopped  gpu.Reason = "DriverStopped"
)

// DriverNote is the start of a note with the driver's state. DriverPhase joins such a note to the
// message of a condition about layer driver.
const (
	DriverNote  = "driver says "
	DriverPhase = "; the " + DriverNote
)

// IsDriverLoading reports whether the driver's container, according to its state, is still preparing
// the driver: it has neither failed nor ended.
func IsDriverLoading(s nodestate.State) bool {
	return s.Phase == nodestate.Waiting && s.Reason != stopped
}

// IsDriverTransition reports whether a driver is not loaded for a reason that is no failure: its
// container is loading it, or was told to unload it.
func IsDriverTransition(reason gpu.Reason) bool { return reason == starting || reason == stopped }
