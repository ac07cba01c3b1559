package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// waiting is the state of a driver's container that waits.
func waiting(reason gpu.Reason) nodestate.State {
	return nodestate.State{Phase: nodestate.Waiting, Reason: reason, Message: "m"}
}

func TestALongWaitForTheDriverEndsWithItsLatestReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		w := driverWatch{stop: stop}
		w.observe(waiting("ModulesMissing"), nil)
		time.Sleep(driverGrace - time.Second)
		w.observe(waiting("Building"), nil)
		require.NoError(t, ctx.Err())
		time.Sleep(2 * time.Second)
		require.EqualError(t, context.Cause(ctx), "Building: no driver is loaded: m")
	})
}

func TestADriverThatWaitsNoLongerEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		w := driverWatch{stop: stop}
		w.observe(waiting("Building"), nil)
		w.observe(nodestate.State{Phase: nodestate.Ready}, nil)
		time.Sleep(2 * driverGrace)
		require.NoError(t, ctx.Err())
		w.observe(nodestate.State{Phase: nodestate.Failed, Reason: "BuildFailed", Message: "m"}, nil)
		require.EqualError(t, context.Cause(ctx), "BuildFailed: no driver is loaded: m")
	})
}
