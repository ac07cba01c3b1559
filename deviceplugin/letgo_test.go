package main

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/test/lab/built"
)

// gpusim runs a command that may fail.
func (m *machine) gpusim(args ...string) (string, error) {
	out, err := exec.CommandContext(soon(m), built.Path(m, "gpusim"), append(args, "--root", m.path("/driver"))...).CombinedOutput()
	return string(out), err
}

// A driver does not reset a GPU that is open. The plugin has all GPUs open until one
// waits for a reset. Releasing it takes a while: it is postponed until no more events
// come, and checked rarely.
func TestGPUAwaitingAResetIsNotHeldOpen(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	out, err := m.gpusim("reset", "--gpu", "3")
	require.Error(t, err)
	require.Contains(t, out, "GPU 3: in use by another client")

	m.sim("xid", "--gpu", "3", "--xid", "95") // after which the driver asks for a reset
	m.wait(7)
	require.Equal(t, gpu.ReasonXID, m.fault(3, true).Reason)
	out, err = m.gpusim("reset", "--gpu", "3", "--wait", "55s")
	require.NoError(t, err, out)
	out, err = m.gpusim("reset", "--gpu", "4")
	require.Error(t, err, "the others are held as ever")
	require.Contains(t, out, "in use by another client")

	m.sim("xid", "--gpu", "5", "--xid", "61")
	m.sim("ecc", "--gpu", "6", "--uncorrected", "1")
	r := m.wait(5)
	require.Equal(t, []int{3, 5, 6}, unhealthy(r), "while it is not looked at, and its neighbours are")
	require.Equal(t, []int{5, 6}, unhealthy(m.wait(6)), "what was reset is seen from outside, and is given away again")
	out, err = m.gpusim("reset", "--gpu", "3")
	require.Error(t, err, "and it is watched as before: %s", out)
	m.sim("xid", "--gpu", "3", "--xid", "79")
	require.Equal(t, []int{3, 5, 6}, unhealthy(m.wait(5)))
}
