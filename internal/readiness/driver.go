package readiness

import (
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// NoDriver is the start of a message about layer driver if the node has no driver and the state of
// the driver's container has the reason.
const NoDriver = "no driver is loaded: "

// DriverSays returns why there is no driver, according to the state of the driver's container. ok
// is false if there is no such state, or it has no reason, or it is of a running driver.
func DriverSays(s nodestate.State, err error) (reason gpu.Reason, message string, ok bool) {
	if err != nil || s.Reason == "" || s.Message == "" || s.Phase != nodestate.Waiting && s.Phase != nodestate.Failed {
		return "", "", false
	}
	return s.Reason, NoDriver + s.Message, true
}

// stopped is the reason in the state of a driver's container that has ended.
const stopped gpu.Reason = "DriverStopped"

// DriverComes reports whether the driver's container, according to its state, is still preparing
// the driver: it has neither failed nor ended.
func DriverComes(s nodestate.State) bool {
	return s.Phase == nodestate.Waiting && s.Reason != stopped
}
