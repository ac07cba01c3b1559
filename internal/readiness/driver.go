package readiness

import (
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// NoDriver begins what is told of a node's driver layer where nothing of a driver is there
// and the driver's container says why. The reason is then the container's.
const NoDriver = "no driver is loaded: "

// DriverSays returns why there is no driver, by the state of the driver's container; ok is
// false where that says nothing, or that there is one.
func DriverSays(s nodestate.State, err error) (reason gpu.Reason, message string, ok bool) {
	if err != nil || s.Reason == "" || s.Message == "" || s.Phase != nodestate.Waiting && s.Phase != nodestate.Failed {
		return "", "", false
	}
	return s.Reason, NoDriver + s.Message, true
}

// stopped is the reason in the state of a driver's container that has ended.
const stopped gpu.Reason = "DriverStopped"

// DriverComes reports whether a driver's container, by its state, is still on its way: it
// has neither failed nor ended.
func DriverComes(s nodestate.State) bool {
	return s.Phase == nodestate.Waiting && s.Reason != stopped
}
