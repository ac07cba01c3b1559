package peermem

import (
	"testing"

	"github.com/gpuready/gpuready/validator/step/kernel/kerneltest"
)

func TestTheModuleAndItsDependencyAreLoaded(t *testing.T) {
	m := kerneltest.New(t)
	kerneltest.Refused(t, Check(t.Context(), m.Node, kerneltest.Driver()), "PeermemModuleNotLoaded", "not loaded: ib_core, nvidia_peermem")
	m.Load("ib_core")
	kerneltest.Refused(t, Check(t.Context(), m.Node, kerneltest.Driver()), "PeermemModuleNotLoaded", "not loaded: nvidia_peermem")
	m.Load("nvidia_peermem")
	m.File("/sys/module/nvidia_peermem/version", "580.95.05\n")
	kerneltest.Proven(t, Check(t.Context(), m.Node, kerneltest.Driver()), "nvidia_peermem is loaded, version 580.95.05")
}
