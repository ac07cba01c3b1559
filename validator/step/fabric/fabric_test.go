package fabric

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step/kernel"
	"github.com/gpuready/gpuready/validator/step/kernel/kerneltest"
)

func TestGPUsHaveJoinedTheirFabric(t *testing.T) {
	m, driver := kerneltest.New(t), kerneltest.Driver()
	look := func(a, b gpu.FabricState) check.Outcome {
		driver.GPUs[0].FabricState, driver.GPUs[1].FabricState = a, b
		return Check(t.Context(), m.Node, driver)
	}
	kerneltest.Proven(t, look(gpu.JoiningNone, gpu.JoiningNone), "no GPU here has a fabric to join")
	kerneltest.Proven(t, look(gpu.JoiningDone, gpu.JoiningDone), "2 of 2 GPUs have joined the fabric")
	kerneltest.Refused(t, look(gpu.JoiningDone, gpu.JoiningWaiting), "FabricNotJoined", "not joined to the fabric: "+check.Name(driver.GPUs[1]))
	kerneltest.Refused(t, look(gpu.JoiningBegun, gpu.JoiningDone), "FabricNotJoined", check.Name(driver.GPUs[0]))
	kerneltest.Refused(t, look(gpu.JoiningWaiting, gpu.JoiningFailed), "FabricFailed", "did not let in "+check.Name(driver.GPUs[1]))

	m.PCI("0000:c1:00.0", kernel.NVIDIA, "0x068000", "nvidia-nvswitch")
	o := look(gpu.JoiningNone, gpu.JoiningNone)
	kerneltest.Proven(t, o, "1 NVSwitches; of the fabric the driver says nothing for these GPUs")
	require.Len(t, o.Notes, 1)
}
