package step

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/validator/check"
)

func TestACardHasItsModulesAndRDMADevices(t *testing.T) {
	m := newMachine(t)
	look := func() check.Outcome { return checkMOFED(t.Context(), m.Node, check.Driver{}) }
	requireProven(t, look(), "no Mellanox device on the PCI bus: nothing to drive")

	m.PCI("0000:5e:00.0", vendorMellanox, "0x020000", "")
	requireRefused(t, look(), "MOFEDModuleNotLoaded", "1 Mellanox devices are on the PCI bus, but not loaded: mlx5_core, ib_core, mlx5_ib")
	m.File("/run/mellanox/drivers/usr/x", "")
	requireRefused(t, look(), "MOFEDContainerNotReady", "there is no /run/mellanox/drivers/.driver-ready")
	m.File("/run/mellanox/drivers/.driver-ready", "")
	for _, module := range []string{"mlx5_core", "ib_core", "mlx5_ib"} {
		m.Load(module)
	}
	requireRefused(t, look(), "MOFEDDeviceMissing", "/sys/class/infiniband has no RDMA device")
	m.File("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
	m.File("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
	o := look()
	requireProven(t, o, "RDMA devices mlx5_0, mlx5_1")
	require.Len(t, o.Notes, 1)
	require.Contains(t, o.Notes[0], "mlx5_1 has no active port")
}
