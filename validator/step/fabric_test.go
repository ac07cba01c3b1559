package step

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/check"
)

func TestGPUsHaveJoinedTheirFabric(t *testing.T) {
	m, driver := newMachine(t), provenDriver()
	look := func(a, b gpu.FabricState) check.Outcome {
		driver.GPUs[0].FabricState, driver.GPUs[1].FabricState = a, b
		return checkFabric(t.Context(), m.Node, driver)
	}
	requireProven(t, look(gpu.JoiningNone, gpu.JoiningNone), "no GPU here has a fabric to join")
	requireProven(t, look(gpu.JoiningDone, gpu.JoiningDone), "2 of 2 GPUs have joined the fabric")
	requireRefused(t, look(gpu.JoiningDone, gpu.JoiningWaiting), "FabricNotJoined", "not joined to the fabric: "+check.Name(driver.GPUs[1]))
	requireRefused(t, look(gpu.JoiningBegun, gpu.JoiningDone), "FabricNotJoined", check.Name(driver.GPUs[0]))
	requireRefused(t, look(gpu.JoiningWaiting, gpu.JoiningFailed), "FabricFailed", "failed to join the fabric: "+check.Name(driver.GPUs[1]))

	m.PCI("0000:c1:00.0", vendorNVIDIA, "0x068000", "nvidia-nvswitch")
	o := look(gpu.JoiningNone, gpu.JoiningNone)
	requireProven(t, o, "1 NVSwitches; the driver reports no fabric state for these GPUs")
	require.Len(t, o.Notes, 1)
}
