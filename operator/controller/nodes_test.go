package controller

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/operator/fleet"
)

func TestTheValidatorFindsNoDriver(t *testing.T) {
	for message, want := range map[string]bool{
		"DriverLibraryMissing|driver: there is no libnvidia-ml.so.1; install it":            true,
		"BuildFailed|driver: no driver is loaded: no headers; name another image":           true,
		"DriverStopped|driver: no driver is loaded: nobody used the driver":                 true,
		"NoUsableGPU|driver: no GPU is usable; the driver says Failed: no driver is loaded": false,
		"KernelModuleNotLoaded|toolkit: x":                                                  false,
	} {
		reason, text, _ := strings.Cut(message, "|")
		n := &fleet.Node{GPUReady: fleet.Condition{Status: corev1.ConditionFalse, Reason: reason, Message: text}}
		require.Equal(t, want, driverMissing(n), message)
		n.GPUReady.Status = corev1.ConditionUnknown
		require.False(t, driverMissing(n), message)
	}
}
